"""`python -m dew` is the program `dew`."""

import sys

from dew.cli import main

if __name__ == "__main__":
    sys.exit(main())
