"""What an operator types: ``keelmq cluster``, ``group``, ``store``, and the servers' own commands."""
