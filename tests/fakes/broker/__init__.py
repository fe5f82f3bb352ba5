"""What parts of a broker meet: a store in memory, a connection that remembers, Controllers without Raft."""
