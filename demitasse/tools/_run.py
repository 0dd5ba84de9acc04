"""Run a verb as the tool of that name."""

from __future__ import annotations

import sys

from demitasse.cli import main
from demitasse.cli.exits import DEVICE, FAILED, MODEL_OR_DATA

__all__ = ["run", "run_caffe"]

VERBS = ("train", "test", "time", "device_query")
"""Verbs of the tool ``caffe``."""

USAGE = 2


def run(verb: str) -> None:
    """Run a verb on the process's arguments; what it would end with 2, 3 or 4, ends with 1."""
    _run([verb, *sys.argv[1:]])


def run_caffe() -> None:
    """Run the tool ``caffe``, whose verb may come after flags."""
    args = sys.argv[1:]
    _run(_verb_first(args))


def _run(args: list[str]) -> None:
    try:
        main(args)
    except SystemExit as end:
        if end.code in {USAGE, MODEL_OR_DATA, DEVICE}:
            raise SystemExit(FAILED) from None
        raise


def _verb_first(args: list[str]) -> list[str]:
    """Put the verb before the flags; a word that follows a flag without ``=`` is its value."""
    for place, arg in enumerate(args):
        before = args[place - 1] if place else ""
        if arg in VERBS and (not before.startswith("-") or "=" in before):
            return [arg, *args[:place], *args[place + 1 :]]
    return args
