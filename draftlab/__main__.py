"""Run the command line as ``python -m draftlab``."""

from draftlab.cli import main

main()
