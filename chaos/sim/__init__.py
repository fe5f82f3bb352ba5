"""A cluster of the real servers in one process: virtual time, a simulated network and disks, one seed."""
