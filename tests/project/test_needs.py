"""Tests that use what POSIX or Linux alone have say so, by ``@needs``: CI runs on four systems."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from needs import LACKING

TESTS = Path(__file__).resolve().parents[1]

NAMES = {
    "fork": {"fork", "forkpty"},
    "signals": {
        "SIGALRM", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP", "SIGUSR1", "kill", "pthread_kill",
        "send_signal", "setitimer",
    },
    "locks": {"flock", "lockf"},
    "modes": {"chmod", "chown", "geteuid", "getuid", "st_mode"},
    "links": {"symlink", "symlink_to"},
    "named pipes": {"mkfifo"},
    "limits of processes": {"setrlimit"},
    "affinity": {"sched_getaffinity", "sched_setaffinity"},
}  # fmt: skip
"""Functions and signals by the need that their use shows."""

MODULES = ("os", "signal", "resource", "fcntl")
OTHER_REASONS = ("MPIRUN", "over_mpi", "mpirun", "can_trace", "compiler()", "geteuid", "linux")
"""Words of markers that skip where those things are missing, too."""


def needed(node: ast.AST) -> Iterator[str]:
    """Yield what the code of a function or a value uses."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute):
            owner = one.value.id if isinstance(one.value, ast.Name) else ""
            portable = one.attr == "kill" and owner not in MODULES  # of a process that was started
            yield from (need for need, names in NAMES.items() if one.attr in names and not portable)
        elif isinstance(one, ast.Constant) and re.match("/pro[c]/", str(one.value)):
            yield "/proc"
        elif isinstance(one, ast.List) and one.elts and ast.unparse(one.elts[0]) == "'sh'":
            yield "a POSIX shell"


def covered(need: str, marks: str) -> bool:
    """Return True if a marker skips on all systems that lack the need."""
    named = {one for one in LACKING["win32"] if f"'{one}'" in marks}
    return all(named & lacking for lacking in LACKING.values() if need in lacking)


def unmarked(path: Path) -> Iterator[str]:
    """Yield tests without the marker of what they, or functions of their file, use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = {one.targets[0].id: one.value for one in tree.body
              if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)}  # fmt: skip
    functions = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    classes = {
        one.name: " ".join(ast.unparse(mark) for mark in group.body if isinstance(mark, ast.Assign))
        for group in tree.body if isinstance(group, ast.ClassDef) for one in group.body
        if isinstance(one, ast.FunctionDef)
    }  # fmt: skip

    def reached(name: str, seen: set[str]) -> set[str]:
        seen.add(name)
        node = functions[name]
        others = {getattr(one, "id", getattr(one, "arg", None)) for one in ast.walk(node)}
        found = set(needed(node))
        for other in (others & functions.keys()) - seen:
            found |= reached(other, seen)
        return found

    module = ast.unparse(values["pytestmark"]) if "pytestmark" in values else ""
    for name, node in functions.items():
        if not name.startswith("test_"):
            continue
        marks = [module, classes.get(name, ""), *(ast.unparse(one) for one in node.decorator_list)]
        marks += [ast.unparse(values[one]) for one in marks if one in values]
        text = "\n".join(marks)
        missing = {need for need in reached(name, set()) if not covered(need, text)}
        if missing and not any(word in text for word in OTHER_REASONS):
            yield f"{path.relative_to(TESTS)}::{name}: {', '.join(sorted(missing))}"


FILES = sorted(TESTS.rglob("test_*.py"))


def test_every_test_names_what_its_system_must_have():
    assert [line for path in FILES for line in unmarked(path)] == []


def test_a_test_without_its_marker_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "TESTS", tmp_path)
    file = tmp_path / "test_a.py"
    file.write_text(
        "import os, signal\nposix = needs('links')\n"
        "def helper(): os.fork()\n"
        "def test_bad(helper): pass\n"
        "@posix\ndef test_good(path): path.symlink_to('a')\n"
        "@needs('signals')\ndef test_sends(process): process.send_signal(1); process.kill()\n"
    )

    assert list(unmarked(file)) == ["test_a.py::test_bad: fork"]


def test_needs_have_known_names():
    assert NAMES.keys() <= LACKING["win32"]
