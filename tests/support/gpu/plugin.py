"""What pytest is told of the stand-in: ``--stand-in``, and the line in the header of a run."""

from __future__ import annotations

import os

import pytest

import gpu


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
