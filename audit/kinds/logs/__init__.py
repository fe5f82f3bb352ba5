"""What differs between logs, ends too early, is damaged, or names an epoch that cannot be."""
