"""TLS of real sockets: certificates that are read anew, and ports whose first byte decides."""
