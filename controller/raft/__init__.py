"""How the Controllers agree on one order of commands: Raft over PySyncObj."""
