"""How are rows kept of which there may be as many as records? In bounded memory, each told once."""
