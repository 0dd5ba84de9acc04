"""Flags that take several words, up to the next flag or file: ``--devices cpu numpy``."""

from __future__ import annotations

import re
from typing import ClassVar

import click

from demitasse.cli.verb import Verb

__all__ = ["DEVICES", "ListVerb"]

DEVICES = re.compile(r"\w+(:\w+)?(,\w+(:\w+)?)*")
"""What names of devices look like, commas between them."""


class ListVerb(Verb):
    """A verb with such flags.

    Attributes:
        lists: Flag -> what its words look like; the first that does not ends the list.
    """

    lists: ClassVar[dict[str, re.Pattern[str]]] = {"--devices": DEVICES}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the words of each list by commas."""
        joined: list[str] = []
        rest = list(args)
        while rest:
            arg = rest.pop(0)
            if arg in self.lists:
                words = []
                while rest and self.lists[arg].fullmatch(rest[0]):
                    words.append(rest.pop(0))
                arg = f"{arg}={','.join(words)}"
            joined.append(arg)
        return super().parse_args(ctx, joined)
