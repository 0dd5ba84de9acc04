"""Guarded memory shows reads and writes past an array, null addresses and stale scratch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from guarded_memory import SIDES, guarded_calls
from stages import exported

from demitasse.backends.kernels.filter_packing import Gather
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Scratch,
    Struct,
)
from demitasse.backends.kernels.language.values import INT, Word
from demitasse.backends.kernels.tuning import Tuning

SUPPORT = Path(__file__).resolve().parents[2] / "support"

WIDTH = 8


class Vectors(Struct):
    """Vectors to copy."""

    x: Address
    """First vector that is read."""
    y: Output
    """First vector that is written."""
    bias: OptionalAddress
    """A vector to add."""
    scratch: Scratch
    """One vector."""
    shift: Word
    """Vectors from the first to the one that is copied."""


def copy(k):
    f = Vectors.read(k)
    at = f.shift * k.vector_bytes
    k.store(k.load(f.x + at), f.y + at)


def add_bias(k):
    f = Vectors.read(k)
    k.store(k.load(f.x) + k.load(f.bias), f.y)


def add_scratch(k):
    f = Vectors.read(k)
    k.store(k.load(f.x) + k.load(f.scratch), f.y)


def read_behind_struct(k):
    f = Vectors.read(k)
    fields = 5
    k.store_word(k.load_word(k.arguments[0] + fields * INT), f.y)


def run(kernel, shift=0, bias=None):
    """Return what a kernel makes of the numbers 0, 1, ... of two vectors."""
    arrays = {
        "x": np.arange(2 * WIDTH, dtype=np.float32),
        "y": np.zeros(2 * WIDTH, np.float32),
        "scratch": np.zeros(WIDTH, np.float32),
        "bias": bias,
    }
    values = Vectors.values(shift=shift, **dict.fromkeys(arrays, RUNTIME))
    Arguments(values).run(exported(f"guarded_{kernel.__name__}", WIDTH, kernel), 1, arrays)
    return arrays["y"]


def status_in_child(code, side):
    """Run code with guarded kernels in a process of its own; return its exit status."""
    lines = [
        "import pytest, test_guarded_memory as tests",
        "from guarded_memory import guarded_calls",
        f"with guarded_calls(pytest.MonkeyPatch(), {side!r}):",
        f"    {code}",
    ]
    path = os.pathsep.join([str(SUPPORT), str(Path(__file__).parent)])
    path = os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


FAULTS = {
    "a vector behind the array": ("tests.run(tests.copy, shift=2)", "behind"),
    "a vector before the array": ("tests.run(tests.copy, shift=-1)", "before"),
    "an absent array": ("tests.run(tests.add_bias)", "behind"),
    "a field behind the struct": ("tests.run(tests.read_behind_struct)", "behind"),
}


@pytest.mark.parametrize(("code", "side"), FAULTS.values(), ids=FAULTS)
def test_a_fault_ends_the_process(code, side):
    status = status_in_child(code, side)

    assert status == -signal.SIGSEGV


@pytest.mark.parametrize("side", SIDES)
def test_a_kernel_that_stays_inside_gives_its_results(monkeypatch, side):
    with guarded_calls(monkeypatch, side):
        copied = run(copy, shift=1)
        added = run(add_bias, bias=np.ones(WIDTH, np.float32))

    assert copied.tolist() == [0.0] * WIDTH + [float(n) for n in range(WIDTH, 2 * WIDTH)]
    assert added.tolist() == [n + 1.0 for n in range(WIDTH)] + [0.0] * WIDTH


@pytest.mark.parametrize("side", SIDES)
def test_kernels_that_are_compiled_at_their_first_run_are_guarded(monkeypatch, side):
    source, target = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)

    with guarded_calls(monkeypatch, side):
        Gather(np.arange(20)[::-1], Tuning(WIDTH))(source, target)

    assert target.tolist() == source[::-1].tolist()


def test_scratch_that_is_read_before_it_is_written_shows(monkeypatch):
    with guarded_calls(monkeypatch, "behind"):
        found = run(add_scratch)

    assert np.isnan(found[:WIDTH]).all()
