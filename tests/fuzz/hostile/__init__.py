"""A hostile client beside a well-behaved one, on a live broker group (docs/security.md)."""
