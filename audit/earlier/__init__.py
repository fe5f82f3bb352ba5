"""What is known of an earlier audit, and need not be read again? Digests, and what stood in sealed files."""
