"""Folders that a crash of the machine may leave, after the system calls of a recorded process.

``record`` runs a program under strace. ``crash_states`` then makes what POSIX allows after a crash
behind each call, as ALICE does (Pillai et al., OSDI 2014): until its folder is flushed, any subset
of the changes of names is on the disk; until a file is flushed, any subset of its writes is, each
complete, torn, or replaced by zeros.
"""

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

TRACED = (
    "openat,write,pwrite64,read,pread64,lseek,ftruncate,fsync,fdatasync,rename,renameat,renameat2,"
    "unlink,unlinkat,link,linkat,symlink,symlinkat,mkdir,mkdirat,rmdir,close"
)
LINE = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)\) += (-?\d+)")
UNFINISHED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')

MARK = b"mark "
"""Beginning of a line on stdout that becomes a mark."""

Kind = Literal["create", "write", "truncate", "flush", "flush folder", "rename", "unlink", "mark"]


@dataclass(frozen=True)
class Call:
    """A call that changes files.

    Attributes:
        kind: What it does.
        file: Number of the file, which stays when its name changes.
        name: Name in the folder; the text of a mark.
        other: New name.
        at: Place of a write, or the new size.
        content: Bytes of a write.
    """

    kind: Kind
    file: int = -1
    name: str = ""
    other: str = ""
    at: int = 0
    content: bytes = b""


@dataclass
class Parser:
    """Makes calls of the lines of strace, for the files of one folder."""

    folder: str
    calls: list[Call] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    files: int = 0

    FOLDER = -2
    STDOUT = 1

    def name(self, text: str) -> str | None:
        path = os.path.normpath(os.path.join(self.folder, text))  # noqa: PTH118
        parent, name = os.path.split(path)
        if path == self.folder:
            return ""
        return name if parent == self.folder else None

    def line(self, call: str, arguments: str, result: int) -> None:
        texts = [bytes.fromhex(t.replace("\\x", "")) for t in TEXT.findall(arguments)]
        number = int(arguments.partition(",")[0]) if re.match(r"\d", arguments) else -1
        if result < 0:
            return
        match call:
            case "openat":
                name = self.name(os.fsdecode(texts[0]))
                self.open.pop(result, None)
                if name == "":
                    self.open[result] = (self.FOLDER, 0)
                elif name is not None and "O_CREAT" in arguments:
                    if name not in self.names:
                        self.names[name] = self.files
                        self.calls.append(Call("create", self.files, name))
                        self.files += 1
                    elif "O_TRUNC" in arguments:
                        self.calls.append(Call("truncate", self.names[name], at=0))
                    self.open[result] = (self.names[name], 0)
                elif name in self.names:
                    self.open[result] = (self.names[name], 0)
            case "close":
                self.open.pop(number, None)
            case "write" | "pwrite64" if number in self.open:
                file, at = self.open[number]
                if call == "pwrite64":
                    at = int(arguments.rsplit(",", 1)[1])
                else:
                    self.open[number] = (file, at + result)
                self.calls.append(Call("write", file, at=at, content=texts[0][:result]))
            case "write" if number == self.STDOUT and texts[0].startswith(MARK):
                self.calls.append(Call("mark", name=texts[0][len(MARK) :].decode().strip()))
            case "read" if number in self.open:
                file, at = self.open[number]
                self.open[number] = (file, at + result)
            case "lseek" if number in self.open:
                self.open[number] = (self.open[number][0], result)
            case "ftruncate" if number in self.open:
                size = int(arguments.split(",")[1])
                self.calls.append(Call("truncate", self.open[number][0], at=size))
            case "fsync" | "fdatasync" if number in self.open:
                file = self.open[number][0]
                kind: Kind = "flush folder" if file == self.FOLDER else "flush"
                self.calls.append(Call(kind, file))
            case "rename" | "renameat" | "renameat2":
                assert "RENAME_EXCHANGE" not in arguments
                old, new = (self.name(os.fsdecode(text)) for text in texts)
                if old in self.names:
                    assert new is not None
                    self.names[new] = self.names.pop(old)
                    self.calls.append(Call("rename", self.names[new], old, new))
            case "unlink" | "unlinkat":
                name = self.name(os.fsdecode(texts[0]))
                if name in self.names:
                    self.calls.append(Call("unlink", self.names.pop(name), name))
            case "link" | "linkat" | "symlink" | "symlinkat" | "mkdir" | "mkdirat" | "rmdir":
                names = [self.name(os.fsdecode(text)) for text in texts]
                assert not any(names), f"{call} of {names} is not modelled"


def record(command: list[str], folder: Path, log: Path) -> list[Call]:
    """Return the calls of a process that change files of a folder, and its marks on stdout.

    The process runs in the folder; the first calls make the files that are there before.
    """
    tracer = ["strace", "-f", "-qq", "-xx", "-s", "100000000", "-o", log, "-e", f"trace={TRACED}"]
    parser = Parser(os.path.realpath(folder))
    for path in folder.iterdir():
        parser.names[path.name] = parser.files
        parser.calls += [
            Call("create", parser.files, path.name),
            Call("write", parser.files, content=path.read_bytes()),
            Call("flush", parser.files),
        ]
        parser.files += 1
    parser.calls.append(Call("flush folder"))
    subprocess.run([*tracer, *command], cwd=folder, check=True, stdout=subprocess.PIPE)
    begun = dict[str, str]()
    for line in log.read_text().splitlines():
        if match := UNFINISHED.match(line):
            begun[match[1]] = match[2]
            continue
        if match := RESUMED.match(line):
            whole = f"{match[1]} {begun.pop(match[1])}{match[2]}"
        else:
            whole = line
        if match := LINE.match(whole):
            parser.line(match[1], match[2], int(match[3]))
    return parser.calls


# -- what a crash leaves -------------------------------------------------------------------------


MOST = 4
"""Unflushed changes of a file of which every subset is made."""


@dataclass(frozen=True)
class File:
    """A file: its flushed content, and the changes since."""

    flushed: bytes = b""
    changes: tuple[Call, ...] = ()

    @property
    def content(self) -> bytes:
        return applied(self.flushed, self.changes)

    def contents(self) -> Iterator[bytes]:
        """Yield contents after a crash: of every subset of few changes, else of typical ones."""
        if not self.changes:
            yield self.flushed
            return
        count = len(self.changes)
        if count <= MOST:
            subsets = itertools.product((False, True), repeat=count)
        else:
            first = [(True,) * n + (False,) * (count - n) for n in range(count + 1)]
            last = [(False,) * n + (True,) * (count - n) for n in range(count + 1)]
            lacks = [tuple(i != n for i in range(count)) for n in range(count)]
            subsets = iter([*first, *last, *lacks])
        for chosen in subsets:
            yield applied(self.flushed, itertools.compress(self.changes, chosen))
        for index, change in enumerate(self.changes):
            if change.kind == "write" and change.content:
                half = replace(change, content=change.content[: len(change.content) // 2])
                zeros = replace(change, content=bytes(len(change.content)))
                for torn in (half, zeros):
                    yield applied(self.flushed, (*self.changes[:index], torn))
                    yield applied(
                        self.flushed, (*self.changes[:index], torn, *self.changes[index + 1 :])
                    )


def applied(content: bytes, changes) -> bytes:
    """Return a content after writes and truncations."""
    result = bytearray(content)
    for change in changes:
        if change.kind == "truncate":
            result[change.at :] = bytes(max(0, change.at - len(result)))
        else:
            result += bytes(max(0, change.at - len(result)))
            result[change.at : change.at + len(change.content)] = change.content
    return bytes(result)


@dataclass(frozen=True)
class Crash:
    """A folder after a crash.

    Attributes:
        contents: Files by name.
        marks: Marks that the process had written before.
    """

    contents: dict[str, bytes]
    marks: tuple[str, ...]


def crash_states(calls: list[Call]) -> Iterator[Crash]:
    """Yield all folders that a crash behind any of the calls may leave, without repeats.

    Files whose names begin with a dot are never read; they have one content only.
    """
    files: dict[int, File] = {}
    flushed: dict[str, int] = {}
    pending: list[Call] = []
    marks: list[str] = []
    seen = set()
    for call in calls:
        match call.kind:
            case "create":
                files[call.file] = File()
                pending.append(call)
            case "rename" | "unlink":
                pending.append(call)
            case "write" | "truncate":
                file = files[call.file]
                files[call.file] = replace(file, changes=(*file.changes, call))
            case "flush":
                files[call.file] = File(files[call.file].content)
            case "flush folder":
                flushed, pending = named(flushed, pending), []
            case "mark":
                marks.append(call.name)
        if not marks:  # the process has not begun
            continue
        for chosen in itertools.product((False, True), repeat=len(pending)):
            names = named(flushed, itertools.compress(pending, chosen))
            variants = [
                [b""] if name.startswith(".") else list(dict.fromkeys(files[number].contents()))
                for name, number in names.items()
            ]
            for contents in itertools.product(*variants):
                crash = Crash(dict(zip(names, contents, strict=True)), tuple(marks))
                key = hash((crash.marks, tuple(sorted(crash.contents.items()))))
                if key not in seen:
                    seen.add(key)
                    yield crash


def named(names: dict[str, int], changes) -> dict[str, int]:
    """Return the names of a folder after changes; a rename gives the file its new name."""
    result = dict(names)
    for change in changes:
        if change.kind == "rename":
            if result.get(change.name) == change.file:
                del result[change.name]
            result[change.other] = change.file
        elif change.kind == "create":
            result[change.name] = change.file
        elif result.get(change.name) == change.file:
            del result[change.name]
    return result
