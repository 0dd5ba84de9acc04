"""Fixtures for tests of cuDNN's engine."""

import pytest
from cudnn_devices import installed
from cudnn_standin import Frontend


@pytest.fixture
def own_folder(monkeypatch, tmp_path_factory):
    """Store plans of cuDNN in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def frontend(own_folder):
    """The stand-in for cuDNN's frontend."""
    with installed(Frontend()) as made:
        yield made
