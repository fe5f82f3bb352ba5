"""What the parts get from outside: time, chance, network, disk, tasks (``Env``), wired for production."""
