"""What every benchmark can ask for.

In a test run each benchmark is executed once, untimed and small; ``nox -s bench`` times them, on
the device of the settings: ``DEMITASSE_DEVICE=cuda:0 nox -s bench``.
"""

import logging

import pytest

from demitasse.core.config import settings


@pytest.fixture
def smoke(request: pytest.FixtureRequest) -> bool:
    """Whether it only matters that the benchmark runs."""
    return not request.config.getoption("benchmark_enable")


@pytest.fixture
def device() -> str:
    """The device of the settings, as a string."""
    return str(settings.get("device"))


@pytest.fixture(autouse=True)
def _quiet():
    """Let no log line be part of what is timed."""
    logger = logging.getLogger("demitasse")
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)
