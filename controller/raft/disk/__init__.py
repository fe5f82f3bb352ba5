"""What a Raft member keeps on its disk: the journal, snapshots, and the directory they are in."""
