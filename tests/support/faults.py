"""System calls that fail, one at a time, under every command that writes files.

``Injector`` runs a writer of ``writers.py`` in a process of its own, in which one call that changes
its folder fails, writes half, or is never reached because the process is killed before it; then it
says what is wrong with what the process left.
"""

import errno
import fnmatch
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import writers
from writers import Writer

__all__ = ["Fault", "Injector", "compiler"]

HERE = Path(__file__).parent

COUNT, FAIL, FAIL_FROM_THEN_ON, SHORT, KILL = range(5)

FULL = ("ENOSPC", "EDQUOT")
KINDS = {
    "open": ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR"),
    "write": ("short", "EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "write_through": ("short", "EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "close": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "rename": ("EIO", "ENOSPC", "EROFS"),
    "mkdir": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "ftruncate": ("EIO", "ENOSPC", "EINTR"),
    "unlink": ("EIO", "EROFS"),
    "chmod": ("EIO", "EROFS"),
    "link": ("EIO", "EROFS"),
}
"""Call -> how it fails alone."""

LASTING = ("ENOSPC", "EDQUOT", "EROFS", "EIO")
"""What does not go away by itself: the disk is full, or has become read-only or broken."""


@dataclass(frozen=True)
class Fault:
    """One call of a run, and what becomes of it.

    Attributes:
        at: Which call, from 0.
        call: Its name.
        how: ``"kill"``, ``"short"`` or an error's name.
        lasting: Whether calls after it fail, too.
    """

    at: int
    call: str
    how: str
    lasting: bool = False

    @property
    def kind(self) -> int:
        known = {"none": COUNT, "kill": KILL, "short": SHORT}
        return known.get(self.how, FAIL_FROM_THEN_ON if self.lasting else FAIL)

    def __str__(self) -> str:
        return f"{self.call} {self.at}: {self.how}{' from then on' if self.lasting else ''}"


UNDISTURBED = Fault(-1, "none", "none")


@dataclass(frozen=True)
class Left:
    """What a process left.

    Attributes:
        code: Its exit code, or minus the signal that ended it.
        text: What it wrote on standard error.
        said: What it wrote on standard output.
        units: File or database in ``out`` -> a digest of what is in it.
        calls: The calls it made, each with its path.
    """

    code: int
    text: str
    said: str
    units: dict[str, str]
    calls: list[tuple[str, str]]


def compiler() -> str | None:
    """Return the C compiler, or None where there is none."""
    return shutil.which("gcc") or shutil.which("cc")


class Injector:
    """Runs writers with faults.

    Args:
        folder: An empty folder to work in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._library = self._folder / "faults.so"
        options = ["-O1", "-shared", "-fPIC", "-o", str(self._library)]
        command = [compiler() or "cc", *options, str(HERE / "faults.c"), "-ldl"]
        subprocess.run(command, check=True)
        for name, seed in (("old", 1), ("new", 2)):
            writers.make_inputs(self._folder / name, seed)
        self._server = subprocess.Popen(
            [sys.executable, HERE / "fault_server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment(),
        )
        self._baselines: dict[str, tuple[Path, Left, Left]] = {}

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        home = self._folder / "home"
        home.mkdir()
        return {
            **os.environ,
            "PYTHONPATH": path,
            "LD_PRELOAD": str(self._library),
            "OMP_NUM_THREADS": "1",
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "MPLCONFIGDIR": str(home),
        }

    def close(self) -> None:
        """End the process that runs writers."""
        self._server.communicate()

    # -- running -----------------------------------------------------------------------------------

    def faults(self, writer: Writer) -> list[Fault]:
        """Return every fault that a writer is to be run with."""
        calls = [call for call, _ in self._baseline(writer)[2].calls]
        found = [Fault(at, call, "kill") for at, call in enumerate(calls)]
        for at, call in enumerate(calls):
            found += [Fault(at, call, how) for how in KINDS[call]]
            found += [Fault(at, call, how, lasting=True) for how in LASTING]
        return found

    def unsynced(self, writer: Writer) -> list[str]:
        """Return what takes its place before all that was written is on the disk."""
        waiting: set[str] = set()
        found = []
        for call, path in self._baseline(writer)[2].calls:
            if call == "write" and not _is_stream(writer, Path(path)) and "lock.mdb" not in path:
                waiting.add(path)
            elif call == "fsync":
                waiting.discard(path)
            elif call == "rename" and any(Path(path).name in name for name in waiting):
                found.append(path)
        return found

    def complaints(self, writer: Writer, fault: Fault) -> list[str]:
        """Run a writer with a fault, and once more without; return what is wrong."""
        start, old, new = self._baseline(writer)
        place = self._begin(writer, "new", start)
        left = self._run(writer, place, fault)
        judge = Judge(writer, fault, old.units, new, self._versions(writer))
        found = judge.complaints(left)
        if left.code:
            _age(place / "out")
            again = self._run(writer, place, UNDISTURBED)
            found += [f"once more: {text}" for text in judge.complaints_of_the_next(left, again)]
        return found

    def _versions(self, writer: Writer) -> set[tuple[str, str]]:
        """Return names and digests of files that an undisturbed run replaces or deletes itself."""
        if not writer.passing:
            return set()
        files = self._versions_folder(writer).glob("*/*")
        return {(file.name, _digest(file)) for file in files}

    def _versions_folder(self, writer: Writer) -> Path:
        return self._folder / "versions" / writer.name.replace(" ", "_")

    def _baseline(self, writer: Writer) -> tuple[Path, Left, Left]:
        """Return what is there before a run, and what an undisturbed run makes of that."""
        if writer.name not in self._baselines:
            start = self._folder / "start" / writer.name.replace(" ", "_")
            self._versions_folder(writer).mkdir(parents=True)
            (start / "out").mkdir(parents=True)
            for name in USERS:
                (start / "out" / name).write_text("mine")
            old = Left(0, "", "", {}, [])
            if not writer.fresh:
                place = self._begin(writer, "old", start)
                old = self._run(writer, place, UNDISTURBED, learn=True)
                assert old.code == 0, f"{old}"
                shutil.rmtree(start)
                shutil.copytree(place / "out", start / "out")
            place = self._begin(writer, "new", start)
            new = self._run(writer, place, UNDISTURBED, learn=writer.fresh)
            assert new.code == 0, f"{new}"
            assert new.units.keys() >= old.units.keys(), f"{old} {new}"
            self._baselines[writer.name] = start, old, new
        return self._baselines[writer.name]

    def _begin(self, writer: Writer, inputs: str, start: Path) -> Path:
        """Make a folder in which a run begins, always of the same name."""
        place = self._folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        shutil.copytree(start / "out", place / "out")
        (place / "in").symlink_to(self._folder / inputs / "in")
        return place

    def _run(self, writer: Writer, place: Path, fault: Fault, *, learn: bool = False) -> Left:
        for name in ("stdout", "stderr", "calls"):
            (place / name).unlink(missing_ok=True)
        request = {
            "folder": str(place),
            "command": writer.command,
            "stdout": writer.stdout,
            "stderr": writer.stderr,
            "log": str(place / "calls"),
            "fault": {
                "at": fault.at,
                "kind": fault.kind,
                "number": getattr(errno, fault.how, 0),
            },
        }
        if learn:
            request["modules"] = str(self._folder / "modules")
            request["versions"] = str(self._versions_folder(writer))
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        lines = (place / "calls").read_text().splitlines()
        text, said = (
            (place / name).read_text(errors="replace") if (place / name).exists() else ""
            for name in (writer.stderr, writer.stdout)
        )
        calls = [(call, path) for call, _, path in (line.partition(" ") for line in lines)]
        return Left(code, text, said, _units(writer, place / "out"), calls)


USERS = ("s_iter_0.tempfile", ".w.npz.part", ".db.mine.part", ".w.npz.deadbeef.part")
"""Files of the user that look a little like ours, and must stay."""


def _age(folder: Path) -> None:
    """Make everything an hour old: what was left behind is not of a process at work."""
    past = time.time() - 3600
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (past, past))


# -- what is right ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """Says what is wrong with what a run left.

    Attributes:
        writer: Who ran.
        fault: What happened to it.
        old: What was there before.
        undisturbed: What a run without a fault leaves.
        passing: Names and digests of files that it replaces or deletes itself.
    """

    writer: Writer
    fault: Fault
    old: dict[str, str]
    undisturbed: Left
    passing: set[tuple[str, str]]

    @property
    def new(self) -> dict[str, str]:
        return self.undisturbed.units

    def complaints(self, left: Left) -> list[str]:
        found = list(self._thirds(left.units))
        killed = self.fault.how == "kill"
        strangers = set(left.units) - set(self.old) - set(self.new)
        strangers -= {name for name, _ in self.passing}
        if killed:
            found += [f"left {name}" for name in strangers if not _is_leftover(name)]
            if left.code != -signal.SIGKILL:
                found.append(f"was not killed: {left.code}")
            return found
        if not self._may_leave:
            found += [f"left {name}" for name in sorted(strangers)]
        found += self._ends(left)
        if (
            left.code == 0
            and not self.writer.optional
            and "TRAINING CONTINUES WITHOUT" not in left.text
        ):
            missing = {name for name, digest in self.new.items() if left.units.get(name) != digest}
            found += [f"ends well without {name}" for name in sorted(missing)]
        if self.writer.optional and left.text.count("not kept") > 1:
            found.append(f"says more than once: {left.text}")
        if left.code == 0 and self.writer.optional and left.said != self.undisturbed.said:
            found.append(f"says {left.said!r}")
        return found

    def complaints_of_the_next(self, left: Left, again: Left) -> list[str]:
        """Return what is wrong with the next run, which nothing disturbs."""
        if self.writer.resumes and "exists already" in again.text:
            return [] if left.units.items() >= self.new.items() else ["nothing is there"]
        if again.code:
            return [f"ends with {again.code}: {again.text[-500:]}"]
        found = [f"{name} is not the new one" for name in self.new
                 if again.units.get(name) != self.new[name]]  # fmt: skip
        found += [f"left {name}" for name in sorted(set(again.units) - set(self.new))]
        if self.writer.optional and again.said != self.undisturbed.said:
            found.append(f"says {again.said!r}")
        return found

    @property
    def _may_leave(self) -> bool:
        """Whether the fault itself keeps the writer from clearing up."""
        if self.writer.resumes:
            return True
        return self.fault.call == "unlink" or (self.fault.lasting and self.fault.how not in FULL)

    def _thirds(self, units: dict[str, str]) -> Iterator[str]:
        """Yield what is neither the old file nor the new one."""
        for name in self.old | self.new | dict(self.passing):
            allowed = {self.old.get(name), self.new.get(name)}
            if units.get(name) not in allowed and (name, units[name]) not in self.passing:
                yield f"{name} is neither old nor new: {units.get(name)}"

    def _ends(self, left: Left) -> Iterator[str]:
        """Yield what is wrong with how the process ended."""
        if left.code not in self.writer.codes:
            yield f"ends with {left.code}: {left.text[-500:]}"
        for sign in ("Traceback", "Exception ignored", "Logging error"):
            if sign in left.text:
                yield f"shows a traceback: {left.text[-1500:]}"
        if left.code == 1 and "error: " not in left.text and self.writer.stderr == "stderr":
            yield f"ends with 1 and says nothing of it: {left.text[-500:]}"


def _is_leftover(name: str) -> bool:
    """Whether a file or folder is one of those that a killed process leaves."""
    parts = Path(name).parts
    patterns = (".*.????????.part", ".*.partial", ".s.lock")
    return any(fnmatch.filter(parts, pattern) for pattern in patterns)


def _units(writer: Writer, folder: Path) -> dict[str, str]:
    """Return files and databases in a folder, each with a digest, without users' and streams."""
    found = {}
    waiting = sorted(folder.iterdir())
    while waiting:
        path = waiting.pop()
        name = path.relative_to(folder).as_posix()
        if any(fnmatch.fnmatch(name, stream) for stream in writer.streams):
            continue
        if name in USERS:
            if path.read_text() != "mine":
                found[name] = "not the user's"
            continue
        if path.is_dir() and not _is_database(path):
            waiting += path.iterdir()
            if _is_leftover(name):
                found[name] = "a folder"
            continue
        try:
            found[name] = _digest(path)
        except Exception as error:  # what cannot be read is neither old nor new
            found[name] = f"{type(error).__name__}: {error}"
    for name in USERS:
        if not (folder / name).exists():
            found[name] = "gone"
    return found


def _is_stream(writer: Writer, path: Path) -> bool:
    return any(fnmatch.fnmatch(path.name, Path(stream).name) for stream in writer.streams)


def _is_database(path: Path) -> bool:
    return (path / "data.mdb").exists() or (path / "CURRENT").exists()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    if path.is_dir():
        from demitasse.io.data.databases.database import open_db, records

        kind = "LMDB" if (path / "data.mdb").exists() else "LEVELDB"
        with closing(open_db(path, kind)) as database, closing(database.new_cursor()) as cursor:
            for key, value in records(cursor):
                digest.update(bytes(key) + b"\0" + bytes(value))
    elif path.suffix == ".solverstate":
        from demitasse.training import read_state

        state = read_state(path)
        for field in ("snapshot", "watch"):  # of earlier snapshots and tests: those may have failed
            state.resume.ClearField(field)
        digest.update(repr((state.iter, state.learned_net, state.resume)).encode())
        digest.update(b"".join(array.tobytes() for array in state.history))
    elif path.suffix == ".h5" and path.stat().st_size:
        import h5py

        with h5py.File(path) as file:
            file.visititems(
                lambda name, item: digest.update(
                    name.encode()
                    + (repr(item[()].tolist() if hasattr(item, "dtype") else 0).encode())
                )
            )
    else:
        digest.update(path.read_bytes())
    return digest.hexdigest()
