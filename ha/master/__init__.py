"""A master and the slaves it serves: what is replicated, who counts, what goes to each of them."""
