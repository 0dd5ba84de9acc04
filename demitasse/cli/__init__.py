"""The command line: Caffe's verbs and flags in both spellings, and some verbs of our own.

Modules here import nothing heavy at their top, so that ``--help`` and completion are quick; what a
verb needs is imported when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; by default on the process's arguments."""
    from demitasse.cli.root import cli

    cli(args)
