"""How do clients find this broker: the NameServers' entry, and the group's address."""
