"""What happens to records after the append: flush, dispatch, indexes, reads, retention."""
