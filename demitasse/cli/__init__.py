"""The command line: Caffe's commands and flags in both spellings, and further commands.

Modules in ``commands`` import nothing heavy at their top, for quick ``--help`` and completion. A
command imports what it needs when it runs.
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; by default on the process's arguments."""
    _open_streams()
    from demitasse.cli.root import run

    run(args)


def _open_streams() -> None:
    """Open the null device for each closed standard stream; escape what output cannot encode.

    Otherwise the next opened file would get the stream's number, and the output of libraries. On
    Windows, pipes and files have an encoding that lacks most characters.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # the lowest free number is the number of this stream: the streams before it are open
            stream = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
