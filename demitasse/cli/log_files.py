"""Files of the log: ``--log_dir``, and ``GLOG_log_dir`` as Caffe's tools heed it.

Source: glog, ``src/logging.cc`` (names of files, and the link to the newest).
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from demitasse.cli.streams import tell

__all__ = ["LogFile", "open_log"]


class LogFile(logging.FileHandler):
    """A log file; what it has no room for does not make a run that goes well a failure."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say once that records are missing."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._tell(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file."""
        try:
            super().close()
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            why = error.strerror or error
            tell(f"warning: {self.baseFilename} lacks lines: {why}")


def open_log(log_dir: Path | None, as_caffe: bool) -> LogFile | None:
    """Open the file that a verb logs to, besides standard error.

    Args:
        log_dir: The folder of ``--log_dir``; it is made where it is not there.
        as_caffe: Whether ``GLOG_log_dir`` counts where there is no ``--log_dir``. The file then has
            glog's name, and the link ``caffe.INFO`` leads to the newest.

    Returns:
        The file, or None where none is wanted, or glog's cannot be written.

    Raises:
        OSError: The file in ``log_dir`` cannot be written.
    """
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
        return LogFile(log_dir / f"demitasse.{_now():%Y%m%d-%H%M%S.%f}.log", encoding="utf-8")
    glog_dir = os.environ.get("GLOG_log_dir")  # noqa: SIM112 - glog's own spelling
    return _open_as_caffe(Path(glog_dir)) if glog_dir and as_caffe else None


def _open_as_caffe(folder: Path) -> LogFile | None:
    owner = f"{socket.gethostname()}.{_user()}"
    name = f"caffe.{owner}.log.INFO.{_now():%Y%m%d-%H%M%S}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = LogFile(folder / name, encoding="utf-8")
    except OSError as error:
        tell(f"warning: no log file in GLOG_log_dir={folder}: {error.strerror}")
        return None
    newest = folder / "caffe.INFO"
    with suppress(OSError):  # not every file system has links
        newest.unlink(missing_ok=True)
        newest.symlink_to(name)
    return file


def _now() -> datetime:
    return datetime.now()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's number that has no name
        return "invalid-user"
