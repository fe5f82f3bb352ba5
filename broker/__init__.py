"""One broker: takes messages, gives them to consumers, and plays its part in its group."""
