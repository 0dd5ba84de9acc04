"""Tools of old versions of Caffe that only say what took their place."""

from __future__ import annotations

import click

from demitasse.cli.exits import FAILED
from demitasse.cli.streams import tell

__all__ = ["REPLACED", "replaced"]

REPLACED = {
    "train_net": "train --solver FILE [--snapshot FILE]",
    "finetune_net": "train --solver FILE --weights FILE",
    "test_net": "test --model FILE --weights FILE [--iterations N]",
    "net_speed_benchmark": "time --model FILE [--iterations N]",
}
"""Old name -> the verb in its place."""


def replaced(name: str) -> click.Command:
    """Return a verb that says what took its place, and fails."""

    @click.command(name, hidden=True, context_settings={"ignore_unknown_options": True})
    @click.argument("args", nargs=-1, type=click.UNPROCESSED)
    def command(args: tuple[str, ...]) -> None:
        del args
        tell(f"error: {name} is no more; use: demitasse {REPLACED[name]}")
        raise SystemExit(FAILED)

    return command
