"""``python -m demitasse.testing.conformance --device NAME [--dtype NAME] [pytest's arguments]``."""

import sys
from pathlib import Path

import pytest

PLUGIN = "demitasse.testing.conformance.plugin"

if __name__ == "__main__":
    # named before pytest reads the command line, so that it knows the options
    # that Demitasse is imported already, and has a plugin of pytest's, is worth no warning
    quiet = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    own = ["-p", "no:demitasse", "-p", PLUGIN]
    sys.exit(pytest.main([*quiet, *own, str(Path(__file__).parent), *sys.argv[1:]]))
