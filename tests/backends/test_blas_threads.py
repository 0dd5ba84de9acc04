"""How many threads numpy's BLAS has in a pass, and that it has its own again afterwards."""

import subprocess
import sys
from threading import Barrier, Thread

import numpy as np
import pytest

from demitasse.backends.numpy.products import BlasThreads, blas
from demitasse.core import threads as module
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.core.threads import wanted_threads

pytestmark = pytest.mark.skipif(not blas(), reason="numpy's BLAS cannot be asked for its threads")


@pytest.fixture
def library():
    """numpy's BLAS with three threads."""
    [library] = blas()
    before = library.get_num_threads()
    library.set_num_threads(3)
    getattr(library, "clear_controlling_thread", lambda: None)()  # of threadpoolctl 3.8
    yield library
    library.set_num_threads(before)


def test_libraries_of_others_are_left_alone():
    text = """
import cv2
from demitasse.backends.numpy.products import blas
print(*[one.filepath for one in blas()])"""
    pytest.importorskip("cv2")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [one.filepath for one in blas()]


@pytest.mark.parametrize("device", ["numpy", "readonly"])
def test_a_setting_bounds_it_on_the_host_s_devices(library, device):
    with settings.override(threads=2), Device(device).backend.enter():
        assert library.get_num_threads() == 2

    assert library.get_num_threads() == 3


def test_beside_openmp_it_has_one_thread(library):
    with settings.override(threads=2), Device("cpu").backend.enter():
        assert library.get_num_threads() == 1

    assert library.get_num_threads() == 3


def test_without_a_setting_it_has_no_more_than_cores(library, monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 2)

    with settings.override(threads=0), BlasThreads():
        assert library.get_num_threads() == 2

    assert library.get_num_threads() == 3


def test_what_a_program_has_lowered_stays_low(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 8)

    with settings.override(threads=0):
        assert wanted_threads(1) == 1


def test_passes_that_overlap_leave_it_as_it_was(library):
    with settings.override(threads=2), BlasThreads(), BlasThreads(1):
        np.dot(np.ones((2, 2)), np.ones((2, 2)))

    assert library.get_num_threads() == 3


def test_the_last_of_several_threads_leaves_it_as_it_was(library):
    barrier = Barrier(2, timeout=60)

    def run():
        with BlasThreads(1):
            barrier.wait()
            barrier.wait()
        barrier.wait()
        barrier.wait()

    thread = Thread(target=run)
    thread.start()
    barrier.wait()  # one pass runs
    with BlasThreads(1):
        barrier.wait()
        barrier.wait()  # the pass of the thread ended
    barrier.wait()
    thread.join()

    assert library.get_num_threads() == 3


def test_a_lack_of_memory_while_a_pass_is_entered_stays_one(library, monkeypatch):
    def refuse(there):
        raise MemoryError

    monkeypatch.setattr("demitasse.backends.numpy.products.wanted_threads", refuse)

    with pytest.raises(MemoryError), Device("numpy").backend.enter():
        pass

    assert library.get_num_threads() == 3
