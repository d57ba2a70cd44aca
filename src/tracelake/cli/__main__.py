"""Entry point of `python -m tracelake.cli`, if the script is not on the path."""

from tracelake.cli import main

main()
