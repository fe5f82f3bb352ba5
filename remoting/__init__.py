"""How two nodes talk: RocketMQ's frames, headers and bodies, and the server and client that carry them."""
