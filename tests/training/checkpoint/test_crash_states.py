"""After a crash of the machine at any time a run resumes from this or the previous snapshot.

The system calls of real snapshots are recorded, and every order and loss that POSIX allows is
tried.
"""

import shutil
import subprocess
import sys

import pytest
from crash_states import Call, Crash, applied, crash_states, named, record

from demitasse import Solver
from demitasse.io.proto import write_text
from demitasse.training.checkpoint.retention import latest_snapshot

RUN = """
import os, sys
from demitasse import Solver
from demitasse.training.checkpoint.retention import latest_snapshot
path, last, keep = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None
solver = Solver(path, device="numpy", keep_last=keep, keep_best="loss")
state = latest_snapshot("s")
if state is not None:
    solver.restore(state)
os.write(1, b"mark %d\\n" % solver.iter)
while solver.iter < last:
    solver.step(1)
    os.write(1, b"mark %d\\n" % solver.iter)
solver.close()
"""

RUNS = {"fresh": (0, 4, 2), "all are kept": (0, 3, 0), "the last is kept": (0, 4, 1),
        "resumed": (2, 5, 2)}  # fmt: skip
"""Name -> iterations before, iterations in all, number of snapshots that are kept."""


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], check=False).returncode == 0
    )


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not can_trace(), reason="strace is not there, or may not trace"
)


class Recorded:
    """A run, its calls, and its snapshots as they were complete."""

    def __init__(self, fields, folder, suffix="", run="fresh"):
        self.solver, self.place = folder / "solver.prototxt", folder / "run"
        self.suffix = suffix
        self.place.mkdir()
        write_text(
            self.solver,
            fields(
                "test_iter: 1 test_interval: 1 "
                f"snapshot_format: {'HDF5' if suffix else 'BINARYPROTO'}",
                snapshot=1, snapshot_prefix="s",
            ),
        )  # fmt: skip
        before, self.last, keep = RUNS[run]
        command = [sys.executable, "-c", RUN, str(self.solver)]
        first = [*command, str(before), str(keep)]
        if before:
            subprocess.run(first, cwd=self.place, check=True, stdout=subprocess.PIPE)
        command += [str(self.last), str(keep)]
        self.calls = record(command, self.place, folder / "log")
        self.complete = {}
        self.best = set()
        for crash in complete_states(self.calls):
            if crash.marks and int(crash.marks[-1]):
                names = self.names(int(crash.marks[-1]))
                self.complete[int(crash.marks[-1])] = [crash.contents[name] for name in names]
            if f"s_best.caffemodel{suffix}" in crash.contents:
                self.best.add(crash.contents[f"s_best.caffemodel{suffix}"])

    def names(self, iteration):
        kinds = ("caffemodel", "solverstate")
        return [f"s_iter_{iteration}.{kind}{self.suffix}" for kind in kinds]

    def fault(self, crash, place):
        """Return what is wrong with the run that begins again in a folder, or an empty text."""
        for path in place.iterdir():
            path.unlink()
        for name, content in crash.contents.items():
            (place / name).write_bytes(content)
        done = int(crash.marks[-1])
        found = latest_snapshot("s")
        if found is None:
            return f"nothing is left of snapshot {done}" if done else ""
        iteration = int(found.name.split("_iter_")[1].split(".")[0])
        if not done <= iteration <= done + 1:
            return f"snapshot {done} was complete, and the run resumes from {iteration}"
        names = self.names(iteration)
        if [crash.contents.get(name) for name in names] != self.complete[iteration]:
            return f"snapshot {iteration} is not the one that was written"
        best = crash.contents.get(f"s_best.caffemodel{self.suffix}")
        if best is not None and best not in self.best:
            return "the best weights are incomplete"
        return ""


def complete_states(calls):
    """Yield the folder after each call of a process without a crash."""
    names, contents, marks = {}, {}, ()
    for call in calls:
        if call.kind in {"create", "rename", "unlink"}:
            names = named(names, [call])
            contents.setdefault(call.file, b"")
        elif call.kind in {"write", "truncate"}:
            contents[call.file] = applied(contents[call.file], [call])
        elif call.kind == "mark":
            marks = (*marks, call.name)
            yield Crash({name: contents[file] for name, file in names.items()}, marks)
        if call.kind == "rename":
            yield Crash({name: contents[file] for name, file in names.items()}, marks)


CASES = [("", run) for run in RUNS] + [(".h5", "fresh")]
MARKS = {("", "fresh"): ()}


@pytest.fixture(
    params=[
        pytest.param(case, id=case[1] + case[0], marks=MARKS.get(case, pytest.mark.exhaustive))
        for case in CASES
    ]
)
def recorded(request, fields, tmp_path):
    suffix, run = request.param
    if suffix:
        pytest.importorskip("h5py")
    return Recorded(fields, tmp_path, suffix, run)


def find_faults(recorded, place, monkeypatch):
    """Return the number of folders after a crash, and what is wrong with the first wrong one."""
    place.mkdir()
    monkeypatch.chdir(place)
    count = 0
    for crash in crash_states(recorded.calls):
        count += 1
        if fault := recorded.fault(crash, place):
            return count, (fault, crash.marks, sorted(crash.contents))
    return count, None


def test_every_crash_leaves_this_or_the_previous_snapshot(recorded, tmp_path, monkeypatch):
    count, fault = find_faults(recorded, tmp_path / "again", monkeypatch)

    sys.stdout.write(f"\n{count} folders after a crash\n")
    assert fault is None
    assert count > 20
    assert max(recorded.complete) == recorded.last

    *_, last = complete_states(recorded.calls)
    names = {path.name for path in recorded.place.iterdir()}
    assert {name for name in last.contents if not name.startswith(".")} == names
    monkeypatch.chdir(recorded.place)
    with Solver(recorded.solver, device="numpy") as solver:
        solver.restore(latest_snapshot("s"), exact=True)
        assert solver.iter == recorded.last


def without(kind):
    return lambda calls: [call for call in calls if call.kind != kind]


def in_place(calls):
    """Write each file under its last name, without a rename."""
    last = {call.file: call.other for call in calls if call.kind == "rename"}
    return [
        Call("create", call.file, last[call.file])
        if call.kind == "create" and call.file in last
        else call
        for call in calls
        if call.kind != "rename"
    ]


def deleted_early(calls):
    """Delete old snapshots before the new one is complete."""
    deleted = [call for call in calls if call.kind == "unlink" and "_iter_" in call.name]
    kept = [call for call in calls if call not in deleted]
    at = next(i for i, call in enumerate(kept) if call.kind == "mark" and call.name == "2")
    return [*kept[: at + 1], *deleted, *kept[at + 1 :]]


MORE = pytest.mark.exhaustive


@pytest.mark.parametrize(
    "breaks",
    [
        without("flush"),
        pytest.param(without("flush folder"), marks=MORE),
        pytest.param(in_place, marks=MORE),
        pytest.param(deleted_early, marks=MORE),
    ],
)
def test_a_broken_order_of_calls_is_noticed(fields, tmp_path, monkeypatch, breaks):
    recorded = Recorded(fields, tmp_path)
    recorded.calls = breaks(recorded.calls)

    _, fault = find_faults(recorded, tmp_path / "again", monkeypatch)

    assert fault is not None
