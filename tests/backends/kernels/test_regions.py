"""Regions of our own team: parts belong to whoever takes them first."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from needs import needs

from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels.language.team import function_address, own_team
from demitasse.backends.kernels.language.team_code import ALONE_AT_FIRST, Field

pytestmark = pytest.mark.skipif(not jit.status().ready, reason=str(jit.status()))

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class State:
    """Fields of the first team."""

    def __getitem__(self, field):
        return ctypes.c_int64.from_address(own_team().state + field).value

    def __setitem__(self, field, value):
        ctypes.c_int64.from_address(own_team().state + field).value = value


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


def run(work, parts):
    """Run ``work(part, parts)`` for each part; raise what a part raised."""
    errors = []

    def kernel(_, part, parts):
        try:
            work(part, parts)
        except BaseException as error:  # else it would be printed, and lost
            errors.append(error)

    function = KERNEL(kernel)
    own_team().run(function_address(function), 0, parts)
    for error in errors:
        raise error


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_every_part_is_done_once(parts):
    done = []

    for _ in range(20):
        run(lambda *part: done.append(part), parts)

    assert sorted(done) == sorted([(part, parts) for part in range(parts)] * 20)


def test_a_part_may_wait_for_one_that_nobody_has_begun(state):
    """The helpers come, though nobody wakes them."""
    for _ in range(5):
        state[Field.ALONE] = 1000
        second = threading.Event()

        def work(part, _, second=second):
            if part:
                second.set()
            else:
                assert second.wait(60)

        run(work, 2)


def run_with_a_late_helper(state):
    """Run a region in which the leader waits for its helper longer than its own part took."""
    begun, start = threading.Event(), time.perf_counter()

    def work(part, _):
        if part == 0:
            assert begun.wait(60)
            return
        begun.set()
        while not state[Field.WAITING]:
            time.sleep(0.001)
        time.sleep(4 * (time.perf_counter() - start))  # longer than the leader's own part took

    run(work, 2)


def test_helpers_that_come_late_are_left_asleep_for_a_while(state):
    run_with_a_late_helper(state)

    assert (state[Field.LEVEL], state[Field.ALONE]) == (1, ALONE_AT_FIRST)
    for _ in range(ALONE_AT_FIRST):
        run(lambda *_: None, 2)
    assert state[Field.ALONE] == 0


def test_helpers_that_were_not_called_are_not_late(state):
    state[Field.ALONE] = 1000

    run_with_a_late_helper(state)

    assert (state[Field.LEVEL], state[Field.ALONE]) == (0, 999)


def test_a_second_thread_runs_its_region_beside_the_first():
    inside, go_on, done = threading.Event(), threading.Event(), []

    def first():
        def work(*_):
            inside.set()
            assert go_on.wait(60)

        run(work, 2)

    leader = threading.Thread(target=first)
    leader.start()
    assert inside.wait(60)
    run(lambda *part: done.append(part), 3)
    go_on.set()
    leader.join()

    assert sorted(done) == [(0, 3), (1, 3), (2, 3)]


PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../../support"]
import threading
from test_regions import Field, State, run
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
from demitasse.backends.kernels.language import team
begin, found = threading.Barrier(8), []
def work():
    begin.wait()
    found.append(team.own_team().state)
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
run(lambda part, _: done.append((part, threading.get_ident())), 4)
assert sorted(done) == [(part, threading.get_ident()) for part in range(4)], done
print("done")
"""
    assert said(program) == ["done"]


def test_a_process_ends_while_helpers_look_for_more_to_do():
    program = f"""{PROGRAM}
for _ in range(10):
    run(lambda *_: None, 4)
print("done")
"""
    for _ in range(3):
        assert said(program) == ["done"]


@needs("fork")
def test_a_forked_child_has_helpers_of_its_own():
    program = f"""{PROGRAM}
import os
run(lambda *_: None, 3)
child = os.fork()
done = []
run(lambda part, _: done.append(part), 3)
assert sorted(done) == [0, 1, 2], done
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("done")
else:
    os._exit(0)
"""
    assert said(program) == ["done"]
