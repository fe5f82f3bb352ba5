"""The promises of the NameServer."""
