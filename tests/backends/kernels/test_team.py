"""Kernels on all threads of a team."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs
from stages import WIDTH, exported

from demitasse.backends.kernels.language import target, team
from demitasse.backends.kernels.language.call_recorder import CallRecorder
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct
from demitasse.backends.kernels.language.values import INT, Word
from demitasse.errors import DeviceError, ErrorCode


class Vectors(Struct):
    """Vectors that threads divide."""

    at: Address
    """Address of the first."""
    count: Word
    """How many."""


def twice(k):
    """Write that every thread of the team doubles its part of an array's vectors."""
    f = Vectors.read(k)
    with k.parallel_loop(f.count) as [vector]:
        place = f.at + vector * k.vector_bytes
        k.store(k.load(place) + k.load(place), place)


@WIDTH
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_team_does_all_of_the_work_once(width, threads):
    kernel = exported(f"twice{threads}x{width}", width, twice)
    array = np.arange(width * 37, dtype=np.float32)

    Arguments(Vectors.values(at=array, count=37)).run(kernel, threads)

    assert np.array_equal(array, 2 * np.arange(width * 37))


@pytest.mark.parametrize("threads", [1, 2, 5, 30])
def test_nested_loops_are_divided_and_each_iteration_has_its_indices(threads):
    counts = 2, 3, 4

    def write(k):
        f = Vectors.read(k)
        with k.parallel_loop(*map(k.word, counts)) as (x, y, z):
            at = f.at + ((x * 3 + y) * 4 + z) * INT
            k.store_word(k.load_word(at) + x * 100 + y * 10 + z, at)

    array = np.zeros(counts, np.int64)
    kernel = exported("nested_loops", 8, write)

    Arguments(Vectors.values(at=array, count=1)).run(kernel, threads)

    np.testing.assert_array_equal(array, np.tensordot([100, 10, 1], np.indices(counts), 1))


@WIDTH
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("threads", [1, 5])
def test_subnormal_numbers_are_0_in_kernels_alone(threads, recorded, width):
    """With such a number, an instruction of x86-64 takes a hundred times as long."""
    kernel = exported(f"subnormal_{threads}_{recorded}x{width}", width, twice)
    tiny = np.finfo(np.float32).tiny
    array, one = np.full(width * 37, tiny / 4, np.float32), np.array([tiny / 4])
    arguments = Arguments(Vectors.values(at=array, count=37))

    if recorded:
        recording = CallRecorder(tuple).record(lambda: arguments.run(kernel, threads))
        array[:] = tiny / 4
        recording.play()
    else:
        arguments.run(kernel, threads)

    assert set(array) == {0 if target.is_x86() else tiny / 2}
    assert one + one == tiny / 2  # in the caller's thread, as before


PROGRAM = """
import threading
import demitasse as dm
from demitasse.io.proto import NetParameter, parse_text
net = dm.Net(parse_text('''
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 16 dim: 32 dim: 32 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c"
        convolution_param { num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
''', NetParameter), phase="TEST", device="cpu")
net.forward()
with open("/proc/self/maps") as maps:
    text = maps.read()
    assert "gomp" not in text and "libdnnl" not in text
print(net.device.backend.name, sum(one.name == "demitasse helper" for one in threading.enumerate()))
"""


@needs("/proc")
def test_kernels_run_on_threads_of_their_own_without_openmp_s_runtime():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True,
        env={**os.environ, "DEMITASSE_THREADS": "3"},
    )  # fmt: skip

    assert done.stdout.split() == ["cpu", "2"]


@pytest.fixture
def no_threads(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_threads_that_the_system_refuses_are_an_error_and_a_kernel_runs_alone(no_threads):
    kernel = exported("refused", 8, twice)
    array = np.arange(8 * 90, dtype=np.float32)

    with expect_error(DeviceError, ErrorCode.LIMIT, resource="threads"):
        team.prepare(88)
    Arguments(Vectors.values(at=array, count=90)).run(kernel, 89)

    assert np.array_equal(array, 2 * np.arange(8 * 90))
