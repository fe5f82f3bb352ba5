"""``keelmq`` and ``python -m keelmq``."""

from cli.main import main

if __name__ == "__main__":
    main()
