"""Caffe's log on standard error, as scripts written for Caffe expect it.

It begins with the first net or solver, unless the program shows what the logger ``demitasse`` says
in a way of its own. ``GLOG_minloglevel`` and ``GLOG_logtostderr`` are heeded. No files are written.

Source: Caffe, ``python/caffe/_caffe.cpp``; glog, ``src/logging.cc``.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

from demitasse.core.log import GLOG_LEVELS, get_logger, start_logging, stop_propagation

__all__ = ["begin_log", "init_log", "log"]

_lock = threading.Lock()
_begun: list[bool] = []

_logger = get_logger(__name__)


def init_log(level: int | None = None, stderr: bool | None = None) -> None:
    """Choose what the log shows.

    Args:
        level: The least severe level: 0 info, 1 warning, 2 error, 3 fatal; None asks
            ``GLOG_minloglevel``, else 0.
        stderr: False shows errors alone, as glog does where it writes the rest to files; None asks
            ``GLOG_logtostderr``, else true.
    """
    with _lock:
        _begun[:] = [True]
        _show(level, _to_stderr() if stderr is None else stderr)


def begin_log() -> None:
    """Show the log from here on, unless that was decided before."""
    with _lock:
        if _begun:
            return
        _begun.append(True)
        handlers = logging.getLogger("demitasse").handlers
        if all(isinstance(handler, logging.NullHandler) for handler in handlers):
            _show(None, _to_stderr())


def log(message: str) -> None:
    """Write a line of level info."""
    begin_log()
    _logger.info("%s", message, stacklevel=2)


def _show(level: int | None, stderr: bool) -> None:
    named = None if level is None else GLOG_LEVELS[max(0, min(level, len(GLOG_LEVELS) - 1))]
    start_logging(named, stream=_Stderr())
    logger = logging.getLogger("demitasse")
    if any(type(handler) is logging.StreamHandler for handler in logging.getLogger().handlers):
        stop_propagation()  # logging.basicConfig() would show each line once more
    if not stderr:
        logger.setLevel(max(logger.level, logging.ERROR))


def _to_stderr() -> bool:
    """Whether the environment lets everything go to standard error."""
    value = os.environ.get("GLOG_logtostderr", "1")  # noqa: SIM112 - glog's own spelling
    return value[:1].lower() not in {"0", "f", "n"}


class _Stderr:
    """What is standard error at the time; notebooks and test runners put others in its place."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
