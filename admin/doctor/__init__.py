"""``keelmq doctor``: what is wrong here and at the servers, and what is to be done?

``machine`` and ``cluster`` look, ``local_checks`` and ``cluster_checks`` judge what they saw (pure).
"""
