"""What is read, verified and repaired in a store that no broker runs on."""
