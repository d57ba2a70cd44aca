"""Entry point of `python -m tracelake`, if the script is not on the path."""

from tracelake.cli import main

if __name__ == "__main__":
    main()
