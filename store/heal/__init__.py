"""How damage is found and mended while the broker runs."""
