"""`python -m detent.cli`: the command line."""

from detent.cli import main

if __name__ == "__main__":
    main()
