"""The client's side of the wire: routes, producers, consumers, and the calls tools make."""
