"""Run the command line as ``python -m demitasse``."""

import sys

from demitasse.cli import main

if __name__ == "__main__":
    sys.exit(main())
