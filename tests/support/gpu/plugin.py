"""What pytest is told of the stand-in: ``--stand-in``, and the line in the header of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import gpu
from gpu.host import has_compiler


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
    gpu.put_in()


def header(config: pytest.Config) -> str:
    if gpu.is_in():
        return "GPU: NONE. cuda:0 and cuda:1 are the stand-in's (tests/support/gpu)"
    return ""


@pytest.fixture
def stand_in() -> Iterator[None]:
    """The stand-in in the place of cupy, for one test, on machines with a GPU too."""
    if not has_compiler():
        pytest.skip("no g++ to compile the kernels for the host")
    with gpu.in_place():
        yield
        gpu.settle()
