"""`python -m fuzz`: see runner.py, which is importable by the processes that it starts."""

import sys

from fuzz.runner import main

if __name__ == "__main__":
    sys.exit(main())
