"""How do clients pop: messages first, and the acknowledgement of each one later?"""
