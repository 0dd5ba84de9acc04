"""``python -m demitasse.testing.conformance --device NAME [--dtype NAME] [pytest's arguments]``."""

import sys
from pathlib import Path

import pytest

# the plugin for tests of users has fixtures of the same names
PLUGINS = ["-p", "no:demitasse", "-p", "demitasse.testing.conformance.plugin"]

if __name__ == "__main__":
    # named before pytest reads the command line, so that it knows the options
    sys.exit(pytest.main([*PLUGINS, str(Path(__file__).parent), *sys.argv[1:]]))
