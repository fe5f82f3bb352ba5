"""What one server's process is made of besides the server: configuration, signals, /status and metrics."""
