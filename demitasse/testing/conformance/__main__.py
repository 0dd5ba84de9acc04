"""``python -m demitasse.testing.conformance --device NAME [--dtype NAME] [pytest's arguments]``."""

import sys
from pathlib import Path

import pytest

PLUGIN = "demitasse.testing.conformance.plugin"

if __name__ == "__main__":
    # named before pytest reads the command line, so that it knows the options
    sys.exit(pytest.main(["-p", PLUGIN, str(Path(__file__).parent), *sys.argv[1:]]))
