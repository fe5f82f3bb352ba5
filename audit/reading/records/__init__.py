"""What do the records of a CommitLog say, found in bytes that may be damaged?"""
