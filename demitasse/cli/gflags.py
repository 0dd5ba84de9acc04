"""Spelling of flags: gflags' (one dash or two, ``=``, ``no`` in front, files), and old names.

Source: Caffe, ``tools/caffe.cpp``, whose flags are gflags' and glog's.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from demitasse.core.paths import regular_file

ONE_DASH = re.compile(r"-[A-Za-z][\w-]+(=.*)?", re.DOTALL)
ONE_LETTER = re.compile(r"^(-[A-Za-z])=(?=.)", re.DOTALL)

GLOG = re.compile(
    r"--?((no)?(alsologtostderr|logtostderr|colorlogtostderr)"
    r"|(?P<number>logbuflevel|logbufsecs|stderrthreshold|v))(?P<value>=.*)?"
)
"""Flags that set where glog writes; logs here always go to standard error."""

CAFFE_FLAGS = frozenset({
    "gpu", "iterations", "level", "model", "phase", "sighup_effect", "sigint_effect", "snapshot",
    "solver", "stage", "weights",
})  # fmt: skip
"""Flags of Caffe's program ``caffe``."""

FLAG_FILE = re.compile(r"--?flagfile(?:=(.*))?")
LARGEST_FILE = 1 << 20
"""Limit of bytes of a file of flags."""

TRUE, FALSE = {"true", "t", "yes", "y", "1"}, {"false", "f", "no", "n", "0"}


def double_dashes(args: Sequence[str]) -> list[str]:
    """Spell flags for click, drop those of glog, and insert the flags of ``--flagfile``."""
    args, rest = split_flags(args)
    dashed = (f"-{arg}" if ONE_DASH.fullmatch(arg) else arg for arg in _from_files(args, set()))
    return [*(ONE_LETTER.sub(r"\1", arg) for arg in _without_glog(dashed)), *rest]


def _without_glog(args: Iterable[str]) -> Iterator[str]:
    """Yield arguments without glog's flags and their numbers."""
    number_follows = False
    for arg in args:
        found = GLOG.fullmatch(arg)
        if found is None and not (number_follows and re.fullmatch(r"-?\d+", arg)):
            yield arg
        number_follows = bool(found and found["number"] and not found["value"])


def split_flags(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return arguments, and those from a lone ``--`` on, which are never changed."""
    end = list(args).index("--") if "--" in args else len(args)
    return list(args[:end]), list(args[end:])


def _from_files(args: Sequence[str], met: set[Path]) -> Iterator[str]:
    """Yield flags, with files of flags replaced by their flags; ``met`` are files read before."""
    rest = iter(args)
    for arg in rest:
        found = FLAG_FILE.fullmatch(arg)
        name = None if found is None else found[1] or next(rest, None)
        if name is None:
            yield arg
            continue
        path = regular_file(name).resolve()
        if path in met:  # a file that names itself would never end
            message = f"{name} is named twice; name each file of flags once"
            raise ValueError(message)
        met.add(path)
        if path.stat().st_size > LARGEST_FILE:
            message = f"{name} is larger than {LARGEST_FILE} bytes"
            raise ValueError(message)
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            if line.strip().startswith("-"):  # other lines are comments, or for other programs
                yield from _from_files([line.strip()], met)


def drop_unused(
    args: Sequence[str], params: Sequence[click.Parameter]
) -> tuple[list[str], list[str]]:
    """Drop flags of other commands of ``caffe``, which takes all flags with each; return warnings.

    The values of the flags are dropped, too.
    """
    unused = CAFFE_FLAGS.difference(flag[2:] for one in params for flag in one.opts)
    out: list[str] = []
    warnings: list[str] = []
    words = iter(args)
    for arg in words:
        flag, equals, _ = arg.partition("=")
        if flag.startswith("--") and normalize_name(flag[2:]) in unused:
            warnings.append(f"{flag} has no effect on this command")
            if not equals:
                next(words, None)
        else:
            out.append(arg)
    return out, warnings


def expand_switches(args: Sequence[str], switches: Collection[str]) -> list[str]:
    """Spell switches for click, where a switch is given or not.

    ``--shuffle=true``, ``--noshuffle`` and so on become ``--shuffle`` or nothing; the last counts.
    The names of the switches have underscores, and no dashes.
    """
    on: dict[str, bool] = {}
    others = []
    for arg in args:
        flag, _, value = arg.partition("=")
        name = normalize_name(flag.removeprefix("--")) if flag.startswith("--") else ""
        value = value.lower() if "=" in arg else "true"
        if name in switches and value in TRUE | FALSE:
            on[name] = value in TRUE
        elif name.removeprefix("no") in switches and "=" not in arg:
            on[name.removeprefix("no")] = False
        else:
            others.append(arg)
    return [f"--{name}" for name, wanted in on.items() if wanted] + others


def normalize_name(name: str) -> str:
    """Return the name of a flag or command with underscores in place of hyphens."""
    return name.replace("-", "_")


# -- old names ---------------------------------------------------------------------------------


class RenamedOption(click.Option):
    """Option with an old flag, or old values and their new ones; they work, without help."""

    def __init__(
        self, *args: Any, old: str = "", old_values: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.old, self.old_values = old, dict(old_values or {})


def current_flags(
    params: Sequence[click.Parameter], args: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Replace old flags and old values by the present ones; return a warning for each, too."""
    renamed = [one for one in params if isinstance(one, RenamedOption)]
    options = {normalize_name(flag[2:]): one for one in renamed for flag in (one.old, *one.opts)}
    out: list[str] = []
    warnings: list[str] = []
    before: RenamedOption | None = None
    for arg in args:
        flag, equals, value = arg.partition("=")
        name = normalize_name(flag[2:]) if flag.startswith("--") else ""
        option = options.get(name) if name else None
        if option is None:
            out.append(arg if before is None else _current_value(before, arg, warnings))
            before = None
            continue
        new = option.opts[0]
        if name == normalize_name(option.old[2:]):
            warnings.append(f"{flag} is deprecated and goes with the next release; use {new}")
            flag = new
        out.append(f"{flag}={_current_value(option, value, warnings)}" if equals else flag)
        before = None if equals else option
    return out, warnings


def _current_value(option: RenamedOption, value: str, warnings: list[str]) -> str:
    new, flag = option.old_values.get(value), option.opts[0]
    if new is None:
        return value
    old = f"{flag} {value}"
    warnings.append(f"{old} is deprecated and goes with the next release; use {flag} {new}")
    return new
