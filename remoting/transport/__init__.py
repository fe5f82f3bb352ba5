"""What happens on one connection: bytes in, frames, calls and their answers; how much begins in a turn."""
