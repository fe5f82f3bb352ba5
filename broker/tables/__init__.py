"""What a broker remembers beside its log: topics, groups, offsets; on its disk, and at the slaves."""
