"""Logger that writes a file of JSON lines."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from demitasse.core.log import json_ready


class JsonLines:
    """Appends one JSON object in a line for every call.

    Each line is one system call: when the process is killed, the file contains all earlier lines. A
    run that resumes appends to the same file.

    Args:
        path: The file; created with its folder if it does not exist.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.is_fifo():  # opening a pipe waits for a reader
            message = "got a pipe, expected a regular file"
            raise OSError(errno.EINVAL, message, os.fspath(path))
        self._file: BinaryIO = self._path.open("ab", buffering=0)
        self._incomplete = not _ends_line(self._path)

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Append a line with ``values``."""
        self._append({"kind": "scalars", "iteration": iteration, "values": values})

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Append a line with ``facts``."""
        self._append({"kind": kind, "iteration": iteration, "facts": facts})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __repr__(self) -> str:
        return f"the file of JSON lines {str(self._path)!r}"

    def _append(self, entry: Mapping[str, object]) -> None:
        """Write a line, after a newline if the line before is incomplete."""
        timed = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        line = f"{json.dumps(json_ready(timed))}\n".encode()
        data = b"\n" + line if self._incomplete else line
        self._incomplete = True
        written = self._file.write(data)
        if written != len(data):
            message = f"only {written} of {len(data)} bytes could be written"
            raise OSError(message)
        self._incomplete = False


def _ends_line(path: Path) -> bool:
    """Return whether a file is empty or ends with a newline; a kill can leave half a line."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
