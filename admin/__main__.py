"""``python -m admin broker -c FILE``: what ``keelmq broker`` runs, without the rest of the command line."""

import sys

from admin.commands.server import broker, controller, namesrv
from admin.exits import run
from admin.group import group_of

if __name__ == "__main__":
    sys.exit(run(group_of("keelmq", "Start one server.", namesrv, controller, broker), sys.argv[1:]))
