"""Kinds of damage at random places of a group: each is found and named, and nothing else is.

``python -m tests.audit.recall`` is the campaign: kinds, seeds, numbers of replicas, engines.
"""
