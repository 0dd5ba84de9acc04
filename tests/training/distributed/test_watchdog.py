"""A process beside another one, which ends it where it cannot do so itself."""

import mmap
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from needs import needs

from demitasse.training.distributed import watchdog
from demitasse.training.distributed.watchdog import LATER, LIMIT, _Monitor

BEGIN = """
import ctypes, os, signal, sys, time
from demitasse.training.distributed.watchdog import Watchdog
dog = Watchdog({patience}, "process 7")
"""


def run(program, patience=1000, **more):
    """Run a program that has a watchdog; return what it ended with and what was said."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN.format(patience=patience) + program],
        capture_output=True, text=True, check=False, timeout=120, **more,
    )  # fmt: skip
    return ended.returncode, ended.stderr


STANDING = {
    "in a library": "ctypes.PyDLL(None).pause()",  # which keeps the interpreter
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "behind its end":
        "c = ctypes.CDLL(None); c.__cxa_atexit(ctypes.cast(c.pause, ctypes.c_void_p), None, None)",
}  # fmt: skip


@needs("signals")
def test_a_process_that_stands_is_told_of_and_killed():
    programs = [f"dog.arm(0.1, 'it did not come; do this')\n{stand}" for stand in STANDING.values()]
    with ThreadPoolExecutor(len(programs)) as pool:  # all wait at the same time
        ended = dict(zip(STANDING, pool.map(run, programs), strict=True))

    killed = -signal.SIGKILL, "error: process 7: it did not come; do this\n"
    assert ended == dict.fromkeys(STANDING, killed)


@needs("signals")
def test_a_process_that_a_signal_stops_is_killed_though_nothing_is_expected():
    code, said = run("os.kill(os.getpid(), signal.SIGSTOP)", patience=1)

    assert code == -signal.SIGKILL
    assert said == "error: process 7: a signal has stopped it for 1 s; it is killed\n"


@pytest.mark.parametrize("launched", [True, False])
def test_a_process_ends_with_its_launcher_and_with_no_other(launched, tmp_path):
    begin = BEGIN.format(patience=1000).replace('7")', f'7", launched={launched})')
    work = tmp_path / "work.py"
    work.write_text(
        f"{begin}\n"
        "open('begun', 'w').close()\n"
        f"time.sleep({60 if launched else 3})\n"
        "open('done', 'w').close()"
    )
    launch = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, 'work.py'])\n"
        "while not os.path.exists('begun'): time.sleep(0.01)"
    )

    said = subprocess.run(
        [sys.executable, "-c", launch],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
    ).stderr  # fmt: skip  # it waits for the end of all

    assert (tmp_path / "done").exists() is not launched
    assert ("error: process 7: its launcher is gone" in said) is launched


def test_what_is_in_time_is_not_told_of_and_the_watchdog_goes_along():
    code, said = run(
        "with dog.timeout(1, 'too late'):\n    pass\ntime.sleep(2)\ndog.arm(1000, 'at its end')"
    )  # which waits for all who could say something

    assert (code, said) == (0, "")


def test_a_block_within_another_is_in_time_with_that_one():
    code, said = run(
        "dog.arm(1000, 'the end')\n"
        "with dog.timeout(0.1, 'a block'):\n"
        "    time.sleep(2)\n"
        "assert dog.armed"
    )

    assert (code, said) == (0, "")


@needs("/proc")
def test_a_watchdog_is_none_of_those_that_a_launcher_started():
    named = "OMPI_COMM_WORLD_RANK"
    look = (
        "time.sleep(1)\n"
        "me = os.getpid()\n"
        "[child] = open(f'/proc/{me}/task/{me}/children').read().split()\n"
        "print(open(f'/proc/{child}/environ').read(), file=sys.stderr)"
    )

    code, said = run(look, env={**os.environ, named: "3", "KEPT": "yes"})

    assert code == 0
    assert "KEPT=yes" in said
    assert named not in said


@pytest.fixture
def looking(monkeypatch):
    """A watchdog without a process, and what it says and whom it kills."""
    done = []
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page[LIMIT.size : LIMIT.size + 5] = b"late\0"
    LIMIT.pack_into(page, 0, 100.0)
    monkeypatch.setattr(watchdog.os, "kill", lambda process, number: done.append("kill"))
    monkeypatch.setattr(_Monitor, "_print", lambda self, what: done.append(what))
    monkeypatch.setattr(watchdog, "_state", lambda process: ("S", 5))
    return _Monitor(1, 5, page, 10.0, "process 7"), done


def test_it_speaks_once_and_kills_later(looking):
    watch, done = looking

    for now in (99.5, 100.1, 100.6, 100.0 + LATER):
        watch._check(now, 0.5, 0.0)
    assert done == ["late"]
    watch._check(100.1 + LATER, 0.5, 0.0)

    assert done == ["late", "kill"]


def test_time_in_which_it_did_not_run_itself_is_not_counted(looking):
    watch, done = looking

    watch._check(99.0, 0.5, 0.0)
    watch._check(199.0, 1.0, 99.0)
    assert done == []
    watch._check(199.6, 0.5, 0.0)

    assert done == ["late"]
