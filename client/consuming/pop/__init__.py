"""What consumers that pop do: take messages of any queue, keep them hidden, acknowledge each by itself."""
