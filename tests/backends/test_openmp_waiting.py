"""Threads that wait spin for a bounded time, whoever loads the OpenMP runtime first."""

import os
import subprocess
import sys

import pytest

from demitasse.backends import onednn

PROGRAM = """
import os
from demitasse.backends import onednn
from demitasse.backends.kernels.language.team import openmp
{first}
assert onednn.status().loaded
print("left behind:", os.environ.get("GOMP_SPINCOUNT"))
"""


def loaded(first: str, **variables: str) -> str:
    """Return what a new process and its OpenMP runtime say."""
    if not onednn.status().loaded or "OpenMP" not in onednn.status().threading:
        pytest.skip(f"needs oneDNN on OpenMP's threads: {onednn.status()}")
    inherited = {
        k: v for k, v in os.environ.items() if k not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)],
        env={**inherited, "OMP_DISPLAY_ENV": "VERBOSE", **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("first", ["onednn.status()", "openmp()"])
def test_waiting_threads_spin_for_a_bounded_time(first):
    said = loaded(first)

    assert "GOMP_SPINCOUNT = '10000'" in said
    assert "left behind: None" in said  # other programs that we start choose for themselves


def test_the_user_s_own_choice_stands():
    assert "GOMP_SPINCOUNT = '77'" in loaded("", GOMP_SPINCOUNT="77")
    assert "GOMP_SPINCOUNT = '0'" in loaded("", OMP_WAIT_POLICY="passive")
