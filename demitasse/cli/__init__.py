"""The command line: Caffe's verbs and flags in both spellings, and some verbs of our own.

Modules here import nothing heavy at their top, so that ``--help`` and completion are quick; what a
verb needs is imported when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; by default on the process's arguments."""
    _open_streams()
    from demitasse.cli.root import run

    run(args)


def _open_streams() -> None:
    """Let standard streams that are closed lead nowhere.

    The next file to be opened would else be one of them, and what libraries print would go there.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # the lowest number that is free is this stream's own, as those before it are open
            stream = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
