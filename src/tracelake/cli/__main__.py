"""`python -m tracelake.cli`: the command line where the script is not on the path."""

from tracelake.cli import main

main()
