"""Run the command line as ``python -m demitasse``."""

from demitasse.cli import main

if __name__ == "__main__":
    main()
