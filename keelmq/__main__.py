"""``keelmq`` and ``python -m keelmq``."""

import sys

INTERRUPTED = 130
"""As in ``admin.exits``, which is not imported yet."""


def main() -> None:
    """Ctrl-C while modules are imported ends it as it does later: in one line."""
    try:
        from cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("aborted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
