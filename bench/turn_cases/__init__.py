"""What bench/turns.py sends: for each request code of a server the dearest request that is let through."""
