"""Drills under virtual time: a seed is run, told, shrunk and measured."""
