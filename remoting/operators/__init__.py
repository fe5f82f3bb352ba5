"""What every server answers an operator alike."""
