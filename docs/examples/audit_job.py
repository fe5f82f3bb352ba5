"""What spark-submit starts: an audit, with the arguments of ``keelmq``."""

from keelmq.__main__ import main

main()
