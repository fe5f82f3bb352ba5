"""Is this broker master, slave or neither, and how do Controllers and NameServers learn of it?"""
