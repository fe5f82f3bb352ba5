"""Timer messages: those that come to their topic at a time of their own."""
