"""``python -m demitasse.testing.conformance --device NAME [--dtype NAME] [pytest's arguments]``."""

import sys
from pathlib import Path

import pytest

# the plugin for users' tests has fixtures of the same names
PLUGINS = ["-p", "no:demitasse", "-p", "demitasse.testing.conformance.plugin"]

if __name__ == "__main__":
    # plugins come first, as they define the options
    sys.exit(pytest.main([*PLUGINS, str(Path(__file__).parent), *sys.argv[1:]]))
