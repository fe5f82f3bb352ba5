"""Links between real processes that can be slowed, cut and reset: Toxiproxy, or a relay with its API."""
