"""Which copy is right where, and which is named as wrong?"""
