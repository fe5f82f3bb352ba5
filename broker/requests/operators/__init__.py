"""Requests of operators and mqadmin: settings, progress, tables, single messages."""
