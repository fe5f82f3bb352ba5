"""How Controllers talk to each other: proven, numbered frames between members, and nothing to anyone else."""
