"""One function for each decoder: bytes in, and nothing but its declared errors out."""
