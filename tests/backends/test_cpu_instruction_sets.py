"""Kernels for older processors: narrower vectors, or none; the same numbers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse.backends.cpu import slow_reason
from demitasse.backends.kernels.language.target import vector_width

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    "tests/backends/test_cpu.py::test_every_layer_of_the_zoo_runs_in_kernels",
    "tests/layers/test_recorded_cases.py",
)
"""What shows most of other vectors."""

ALL = (
    *LAYERS,
    "tests/backends/test_cpu_winograd.py::test_both_passes_are_the_portable_ones",
    "tests/backends/test_cpu_direct.py::test_both_passes_are_the_portable_ones",
    "tests/net/test_nonfinite_values.py",
    "tests/layers/test_reference.py::test_recorded_cases_run_as_the_reference_says",
)


@pytest.mark.parametrize(
    ("instructions", "width", "tests", "least"),
    [
        ("AVX2", 8, LAYERS, 151),
        pytest.param("AVX2", 8, ALL, 151, marks=pytest.mark.exhaustive),
        pytest.param("SSE41", 0, ALL, 140, marks=pytest.mark.slow),  # tests of kernels are skipped
    ],
)
def test_recorded_cases_on_an_older_processor(instructions, width, tests, least):
    if vector_width() == width:
        pytest.skip(f"this processor's vectors are of {width} floats; all tests run with it")
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--backends=cpu"]
    command += ["-m", "not slow and not exhaustive"]  # with the pairs
    # the width of the processor's vectors takes no part in the others
    command += ["-k", "not float64 and not portable_code and not (floats and (blocks or channels))"]

    done = subprocess.run(
        [*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) >= least
