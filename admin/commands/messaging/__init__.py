"""Commands on topics, consumers, producers and messages."""
