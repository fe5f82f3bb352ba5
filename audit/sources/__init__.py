"""Where a replica's bytes lie: this machine, another host, a server, an object store, a compressed copy."""
