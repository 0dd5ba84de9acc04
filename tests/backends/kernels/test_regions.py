"""Regions of our own team: parts belong to whoever takes them first."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from needs import needs

from demitasse.backends import onednn
from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels import team as installation
from demitasse.backends.kernels.language import team as openmp_team
from demitasse.backends.kernels.language.team import own_team
from demitasse.backends.kernels.team import Imports
from demitasse.backends.kernels.team.regions import ALONE_AT_FIRST
from demitasse.backends.kernels.team.runtime import Field
from demitasse.backends.onednn.library.library import load

onednn.status()  # takes our team into use, where there can be one
pytestmark = pytest.mark.skipif(
    bool(onednn.status().openmp) or not jit.status().ready,
    reason=f"no team of our own: {onednn.status().openmp or jit.status()}",
)
with_library = pytest.mark.skipif(not onednn.status().loaded, reason=str(onednn.status()))

LONG = ctypes.c_long
PART = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
KINDS = {
    "GOMP_parallel": ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    ),
    "GOMP_barrier": ctypes.CFUNCTYPE(None),
    "GOMP_loop_static_start": ctypes.CFUNCTYPE(
        ctypes.c_bool, LONG, LONG, LONG, LONG, ctypes.POINTER(LONG), ctypes.POINTER(LONG)
    ),
    "GOMP_loop_static_next": ctypes.CFUNCTYPE(
        ctypes.c_bool, ctypes.POINTER(LONG), ctypes.POINTER(LONG)
    ),
    "GOMP_loop_end_nowait": ctypes.CFUNCTYPE(None),
    "omp_get_thread_num": ctypes.CFUNCTYPE(ctypes.c_int),
    "omp_get_num_threads": ctypes.CFUNCTYPE(ctypes.c_int),
    "omp_in_parallel": ctypes.CFUNCTYPE(ctypes.c_int),
}


def functions(of):
    """Return functions of a team, by their names in OpenMP's runtime."""
    if of == "ours":
        addresses = own_team()
    else:
        runtime = openmp_team.openmp()
        addresses = {n: ctypes.cast(getattr(runtime, n), ctypes.c_void_p).value for n in KINDS}
    return SimpleNamespace(**{name: kind(addresses[name]) for name, kind in KINDS.items()})


@pytest.fixture(params=["ours", pytest.param("libgomp", marks=with_library)])
def team(request):
    return functions(request.param)


@pytest.fixture
def ours():
    return functions("ours")


class State:
    """Fields of the first team."""

    def __getitem__(self, field):
        return ctypes.c_int64.from_address(own_team()["state"] + field).value

    def __setitem__(self, field, value):
        ctypes.c_int64.from_address(own_team()["state"] + field).value = value


@pytest.fixture
def state():
    """What our team shares, as after regions that went well."""
    state = State()
    kept = {field: state[field] for field in (Field.ALONE, Field.LEVEL, Field.GOOD)}
    for field in kept:
        state[field] = 0
    yield state
    for field, value in kept.items():
        state[field] = value


def run(team, work, parts):
    """Run a region; raise what a part raised."""
    errors = []

    def part(_):
        try:
            work()
        except BaseException as error:  # else it would be printed, and lost
            errors.append(error)

    team.GOMP_parallel(PART(part), None, parts, 0)
    for error in errors:
        raise error


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_every_part_is_done_once(team, parts):
    done = []

    for _ in range(20):
        run(
            team,
            lambda: done.append((team.omp_get_thread_num(), team.omp_get_num_threads())),
            parts,
        )

    assert sorted(done) == sorted([(part, parts) for part in range(parts)] * 20)


def test_outside_of_regions_there_is_one_part(team):
    asked = team.omp_get_thread_num(), team.omp_get_num_threads(), team.omp_in_parallel()

    assert asked == (0, 1, 0)


def test_a_region_in_a_region_has_one_part(team):
    outer, inner = [], []

    def inside():
        inner.append((team.omp_get_thread_num(), team.omp_get_num_threads()))

    def work():
        assert team.omp_in_parallel()
        run(team, inside, 4)
        outer.append(team.omp_get_thread_num())

    run(team, work, 2)

    assert sorted(outer) == [0, 1]
    assert inner == [(0, 1)] * 2


def test_nobody_gets_past_a_barrier_before_all_have_come(team):
    come, seen = [], []

    def work():
        for round_ in range(10):
            come.append(round_)
            team.GOMP_barrier()
            seen.append((round_, come.count(round_)))
            team.GOMP_barrier()

    run(team, work, 3)

    assert sorted(seen) == sorted([(round_, 3) for round_ in range(10)] * 3)


@with_library
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    ("start", "stop", "step", "chunk"),
    [(0, 10, 1, 0), (0, 2, 1, 0), (3, 20, 4, 0), (9, -2, -3, 0), (5, 5, 1, 0), (0, 11, 1, 2),
     (0, 3, 2, 5), (10, 0, -1, 3)],
)  # fmt: skip
def test_loops_are_shared_out_as_by_the_original(parts, start, stop, step, chunk):
    def shares(team):
        found = {part: [] for part in range(parts)}

        def work():
            first, last = LONG(), LONG()
            places = ctypes.byref(first), ctypes.byref(last)
            more = team.GOMP_loop_static_start(start, stop, step, chunk, *places)
            while more:
                block = range(first.value, last.value, step)
                found[team.omp_get_thread_num()] += block
                more = team.GOMP_loop_static_next(*places)
            team.GOMP_loop_end_nowait()

        run(team, work, parts)
        return found

    found = shares(functions("ours"))

    assert found == shares(functions("libgomp"))
    assert sorted(i for block in found.values() for i in block) == sorted(range(start, stop, step))


def test_a_part_may_wait_for_one_that_nobody_has_begun(ours, state):
    """So do oneDNN's sums over threads; the helpers come, though nobody wakes them."""
    for _ in range(5):
        state[Field.ALONE] = 1000
        second = threading.Event()

        def work(second=second):
            if ours.omp_get_thread_num():
                second.set()
            else:
                assert second.wait(60)

        run(ours, work, 2)


def run_with_a_late_helper(ours, state):
    """Run a region in which the leader waits for its helper longer than its own part took."""
    begun, start = threading.Event(), time.perf_counter()

    def work():
        if ours.omp_get_thread_num() == 0:
            assert begun.wait(60)
            return
        begun.set()
        while not state[Field.WAITING]:
            time.sleep(0.001)
        time.sleep(4 * (time.perf_counter() - start))  # longer than the leader's own part took

    run(ours, work, 2)


def test_helpers_that_come_late_are_left_asleep_for_a_while(ours, state):
    run_with_a_late_helper(ours, state)

    assert (state[Field.LEVEL], state[Field.ALONE]) == (1, ALONE_AT_FIRST)
    for _ in range(ALONE_AT_FIRST):
        run(ours, lambda: None, 2)
    assert state[Field.ALONE] == 0


def test_helpers_that_were_not_called_are_not_late(ours, state):
    state[Field.ALONE] = 1000

    run_with_a_late_helper(ours, state)

    assert (state[Field.LEVEL], state[Field.ALONE]) == (0, 999)


def test_a_second_thread_runs_its_region_beside_the_first(ours):
    inside, go_on, done = threading.Event(), threading.Event(), []

    def first():
        def work():
            inside.set()
            assert go_on.wait(60)

        run(ours, work, 2)

    leader = threading.Thread(target=first)
    leader.start()
    assert inside.wait(60)
    run(ours, lambda: done.append((ours.omp_get_thread_num(), ours.omp_get_num_threads())), 3)
    go_on.set()
    leader.join()

    assert sorted(done) == [(0, 3), (1, 3), (2, 3)]


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import threading
from test_regions import Field, State, functions, run
ours = functions("ours")
"""


def said(program, *arguments, **variables):
    """Return what a new process prints."""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", program, here, *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_threads_that_begin_at_once_share_one_team():
    program = """
import threading
from demitasse.backends.kernels.language import compiler, team
begin, found = threading.Barrier(8), []
def work():
    begin.wait()
    found.append(team.own_team()["state"])
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), len(set(found)))
"""
    assert said(program) == ["8", "1"]


def test_one_thread_does_all_parts_if_no_other_comes():
    program = f"""{PROGRAM}
State()[Field.HELPERS] = 10  # who are not there
done = []
run(ours, lambda: done.append((ours.omp_get_thread_num(), threading.get_ident())), 4)
assert sorted(done) == [(part, threading.get_ident()) for part in range(4)], done
print("done")
"""
    assert said(program) == ["done"]


def test_a_process_ends_while_helpers_look_for_more_to_do():
    program = f"""{PROGRAM}
for _ in range(10):
    run(ours, lambda: None, 4)
print("done")
"""
    for _ in range(3):
        assert said(program) == ["done"]


@needs("fork")
def test_a_forked_child_has_helpers_of_its_own():
    program = f"""{PROGRAM}
import os
run(ours, lambda: None, 3)
child = os.fork()
done = []
run(ours, lambda: done.append(ours.omp_get_thread_num()), 3)
assert sorted(done) == [0, 1, 2], done
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("done")
else:
    os._exit(0)
"""
    assert said(program) == ["done"]


TRAINING = """
import hashlib
import numpy as np
import demitasse as dm
from demitasse.io.proto import NetParameter, parse_text
from demitasse.backends import onednn
net = dm.Net(parse_text('''
force_backward: true
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 6 dim: 3 dim: 13 dim: 13 } } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c"
        convolution_param { num_output: 24 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "n" type: "BatchNorm" bottom: "c" top: "n" }
layer { name: "r" type: "ReLU" bottom: "n" top: "n" }
layer { name: "p" type: "Pooling" bottom: "n" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "i" type: "InnerProduct" bottom: "p" top: "i"
        inner_product_param { num_output: 9 weight_filler { type: "xavier" } } }
layer { name: "s" type: "Softmax" bottom: "i" top: "s" }
''', NetParameter), phase="TRAIN", device="cpu")
rng = np.random.default_rng(5)
for blobs in net.params.values():
    for blob in blobs:
        blob.data[...] = rng.standard_normal(blob.shape, dtype=np.float32)
net.blobs["data"].data[...] = rng.standard_normal((6, 3, 13, 13), dtype=np.float32)
digest = hashlib.sha256()
for _ in range(4):
    net.forward()
    net.blobs["s"].diff[...] = net.blobs["s"].data
    net.backward()
    digest.update(net.blobs["s"].data.tobytes() + net.blobs["data"].diff.tobytes())
    for blobs in net.params.values():
        for blob in blobs:
            digest.update(blob.diff.tobytes())
print(digest.hexdigest(), "openmp" if onednn.status().openmp else "ours")
"""


@with_library
def test_results_are_openmp_s_bit_for_bit():
    of_ours = said(TRAINING, DEMITASSE_THREADS="2")
    of_openmp = said(TRAINING, DEMITASSE_THREADS="2", OMP_WAIT_POLICY="passive")

    assert (of_ours[1], of_openmp[1]) == ("ours", "openmp")
    assert of_ours[0] == of_openmp[0]


@with_library
@pytest.mark.parametrize("name", installation.OPENMP_VARIABLES)
def test_a_user_who_says_how_openmp_s_threads_behave_has_them(monkeypatch, name):
    monkeypatch.setenv(name, "1")

    assert name in installation.obstacle()


def test_a_library_that_calls_what_we_do_not_know_keeps_openmp(monkeypatch):
    changed = []
    imports = SimpleNamespace(places={"GOMP_task": [], "omp_get_level": []}, replace=changed.append)
    monkeypatch.setattr(installation, "Imports", lambda _: imports)

    assert installation._replace_imports(None) == "the library calls GOMP_task, omp_get_level"
    assert changed == []


@with_library
def test_the_library_calls_ours():
    places = Imports(load()).places
    ours = own_team()

    called = {
        name: {ctypes.c_uint64.from_address(place).value for place in places[name]}
        for name in ours.keys() & places.keys()
    }

    assert called == {name: {ours[name]} for name in called}
    assert "omp_get_thread_num" in called
