"""Stand-ins, one set a layer: disks, the HA layer, Controllers, brokers, and the servers a client meets."""
