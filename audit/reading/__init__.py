"""How are one replica's files read: where it lies, what is in its directory, record by record?"""
