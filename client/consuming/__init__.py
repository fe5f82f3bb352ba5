"""What consumers do: share the queues, pull, hand over, and note how far all is done."""
