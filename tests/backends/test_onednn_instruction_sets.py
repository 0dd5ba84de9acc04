"""oneDNN's code for older processors: other kernels and layouts, the same numbers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse.backends.onednn import status

pytestmark = pytest.mark.skipif(not status().loaded, reason=str(status()))

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    "tests/backends/test_onednn.py::test_no_primitive_of_the_zoo_is_a_reference_implementation",
    "tests/backends/test_onednn_winograd.py::"
    "test_the_layouts_that_the_library_likes_suit_our_kernels",
    "tests/layers/test_recorded_cases.py",
)
"""What shows most of a library that has other kernels and layouts."""

ALL = (
    *LAYERS,
    "tests/backends/test_onednn_winograd.py::test_both_passes_are_the_portable_ones",
    "tests/backends/test_onednn_direct.py::test_both_passes_are_the_portable_ones",
    "tests/net/test_nonfinite_values.py",
    "tests/layers/test_reference.py::test_recorded_cases_run_as_the_reference_says",
)


@pytest.mark.parametrize(
    ("instructions", "name", "tests"),
    [
        ("AVX2", "AVX2", LAYERS),
        pytest.param("AVX2", "AVX2", ALL, marks=pytest.mark.exhaustive),
        pytest.param("SSE41", "SSE4.1", ALL, marks=pytest.mark.slow),
    ],
)
def test_recorded_cases_on_an_older_processor(instructions, name, tests):
    if status().instruction_set == name:
        pytest.skip(f"this processor's own instruction set is {name}; all tests run with it")
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--backends=cpu"]
    # neither oneDNN's code nor its choice of layouts takes part in the others
    command += ["-k", "not float64 and not portable_code and not (floats and (blocks or channels))"]

    done = subprocess.run(
        [*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 150
