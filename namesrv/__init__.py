"""Where is a topic: the NameServer's route table, and the server that answers from it."""
