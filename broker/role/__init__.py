"""Is this broker master, slave or neither, and what does it do to change that?"""
