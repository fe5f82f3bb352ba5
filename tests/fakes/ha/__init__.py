"""Brokers of the HA port: a store of plain bytes, a group on loopback, a slave that says what it likes."""
