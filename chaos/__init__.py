"""What breaks a cluster on purpose, what load it gets meanwhile, and whether every promise held."""
