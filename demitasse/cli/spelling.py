"""Flags as gflags takes them: one dash or two, a space or ``=``, ``no`` in front, from a file.

Source: Caffe, ``tools/caffe.cpp``, whose flags are gflags' and glog's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from demitasse.core.paths import regular_file

__all__ = ["plain_name", "plain_switches", "two_dashes"]

ONE_DASH = re.compile(r"-[A-Za-z][\w-]+(=.*)?", re.DOTALL)

GLOG = re.compile(
    r"--?((no)?(alsologtostderr|logtostderr|colorlogtostderr|logbuflevel|logbufsecs)"
    r"|stderrthreshold|v)(=\w*)?"
)
"""Flags that only say where glog puts its lines. Ours always go to standard error."""


FLAG_FILE = re.compile(r"--?flagfile(?:=(.*))?")
LARGEST_FILE = 1 << 20
"""Bytes of a file of flags."""

TRUE, FALSE = {"true", "t", "yes", "y", "1"}, {"false", "f", "no", "n", "0"}


def two_dashes(args: Sequence[str]) -> list[str]:
    """Give long flags two dashes, and leave those of glog out that change nothing here.

    What comes after a lone ``--`` is left alone. Flags in files that ``--flagfile`` names stand in
    its place.

    Raises:
        OSError: Such a file cannot be read.
        ValueError: It is named twice, is too large or is no text.
    """
    end = list(args).index("--") if "--" in args else len(args)
    flags = _from_files(args[:end], set())
    dashed = (f"-{arg}" if ONE_DASH.fullmatch(arg) else arg for arg in flags)
    return [arg for arg in dashed if not GLOG.fullmatch(arg)] + list(args[end:])


def _from_files(args: Sequence[str], met: set[Path]) -> Iterator[str]:
    """Yield flags, those in files in place of the files' names; ``met`` are files read before."""
    rest = iter(args)
    for arg in rest:
        found = FLAG_FILE.fullmatch(arg)
        name = None if found is None else found[1] or next(rest, None)
        if name is None:
            yield arg
            continue
        path = regular_file(name).resolve()
        if path in met:  # perhaps by itself, without an end
            message = f"{name} is named twice; each such file may be named once"
            raise ValueError(message)
        met.add(path)
        if path.stat().st_size > LARGEST_FILE:
            message = f"{name} has more than {LARGEST_FILE} bytes"
            raise ValueError(message)
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip().startswith("-"):  # others are comments, or for other programs
                yield from _from_files([line.strip()], met)


def plain_switches(args: Sequence[str], switches: Collection[str]) -> list[str]:
    """Spell switches as click does: there or not.

    ``--shuffle=true``, ``--noshuffle`` and so on become ``--shuffle`` or nothing; the last counts.

    Args:
        args: Arguments, flags with two dashes.
        switches: Names of those flags that are on or off, with underscores and without dashes.

    Returns:
        The switches that are on, and what else there was.
    """
    end = list(args).index("--") if "--" in args else len(args)
    on: dict[str, bool] = {}
    others = []
    for arg in args[:end]:
        flag, _, value = arg.partition("=")
        name = plain_name(flag.removeprefix("--")) if flag.startswith("--") else ""
        value = value.lower() if "=" in arg else "true"
        if name in switches and value in TRUE | FALSE:
            on[name] = value in TRUE
        elif name.removeprefix("no") in switches and "=" not in arg:
            on[name.removeprefix("no")] = False
        else:
            others.append(arg)
    return [f"--{name}" for name, wanted in on.items() if wanted] + others + list(args[end:])


def plain_name(name: str) -> str:
    """Return a flag's or verb's name with underscores, so that hyphens are as good."""
    return name.replace("-", "_")
