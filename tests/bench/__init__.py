"""What is measured by hand is held together with what it measures."""
