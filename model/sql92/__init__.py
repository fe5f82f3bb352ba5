"""Which messages does a SQL92 expression of a consumer choose?

Grammar, conversions and refusals are those of RocketMQ's ``filter`` module, surprises included: what follows
a whole expression is not read, a property that is no number where one is needed chooses no message, and
``TRUE = a`` never does (``a = TRUE`` may).
"""

from model.sql92.compile import Filter, SqlError, Texts, compile_filter, is_compiled

__all__ = ["Filter", "SqlError", "Texts", "compile_filter", "is_compiled"]
