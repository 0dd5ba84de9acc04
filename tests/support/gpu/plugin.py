"""What pytest is told of the stand-in: ``--stand-in``, a fixture, and the header of a run.

It is imported when a test needs it: what it imports takes time, and some is compiled.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stand-in",
        action="store_true",
        default=os.environ.get("DEMITASSE_TEST_STAND_IN") == "1",
        help="put the stand-in for cupy and two GPUs in the place of the real ones",
    )


def configure(config: pytest.Config) -> None:
    """Put the stand-in in before any test is collected."""
    if not config.getoption("--stand-in"):
        return
    if os.environ.get("DEMITASSE_REQUIRE_GPU") == "1":
        raise pytest.UsageError("DEMITASSE_REQUIRE_GPU=1 asks for a real GPU: not --stand-in")
    from gpu.package import put_in

    put_in()


def header(config: pytest.Config) -> str:
    if config.getoption("--stand-in"):
        return "GPU: NONE. cuda:0 and cuda:1 are the stand-in's (tests/support/gpu)"
    return ""


@pytest.fixture
def stand_in() -> Iterator[None]:
    """The stand-in in the place of cupy, for one test, on machines with a GPU too."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels for the host")
    from gpu.package import in_place, settle

    with in_place():
        yield
        settle()
