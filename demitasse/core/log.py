"""Logging: quiet from Python, and in the words and the format of Caffe when somebody asks.

Everything is said through the standard library under the name ``demitasse``. Nothing is shown until
a program gives that logger a handler, or calls :func:`start_logging` as the command line does.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from demitasse.core.config import settings
from demitasse.core.sanitize import escaped
from demitasse.errors import ConfigError

__all__ = [
    "GlogFormatter",
    "JsonFormatter",
    "Writer",
    "get_logger",
    "json_ready",
    "keep_from_root",
    "number",
    "start_logging",
    "stop_logging",
]

ROOT = "demitasse"
LETTERS = {"DEBUG": "D", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "F"}
GLOG_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
FORMATS = ("glog", "text", "json")


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, given its ``__name__``."""
    return logging.getLogger(name if name.split(".", maxsplit=1)[0] == ROOT else f"{ROOT}.{name}")


def number(value: float) -> str:
    """Return a number as C++ streams print it: six significant digits."""
    return f"{value:g}"


class GlogFormatter(logging.Formatter):
    """Lines as glog writes them, which is what Caffe's log parsers read.

    For example ``I1120 12:00:00.000000  4242 solver.py:239] Iteration 0, lr = 0.01``: letter of the
    level, month and day, local time, process, file and line, message. An exception follows on lines
    of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        when = datetime.fromtimestamp(record.created)
        letter = LETTERS.get(record.levelname, record.levelname[:1])
        head = f"{letter}{when:%m%d %H:%M:%S.%f} {record.process or 0:>5} {record.filename}"
        line = f"{head}:{record.lineno}] {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return _shown(line)


class TextFormatter(logging.Formatter):
    """Level and message alone, as in ``WARNING: the disk is nearly full``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        return _shown(f"{record.levelname}: {super().format(record)}")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the record's ``metrics`` if any.

    Records about training carry their numbers in ``metrics``, so that no program has to find them
    in the text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        metrics = getattr(record, "metrics", None)
        if isinstance(metrics, Mapping):
            entry["metrics"] = json_ready(metrics)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class Writer(Protocol):
    """Something that takes text, such as an open file."""

    def write(self, text: str, /) -> object:
        """Take a piece of text."""


def start_logging(
    level: str | int | None = None, style: str = "glog", stream: Writer | None = None
) -> logging.Handler:
    """Show what Demitasse says; a second call takes the place of the first.

    Args:
        level: The least severe level shown; by default ``GLOG_minloglevel`` (0 info, 1 warning,
            2 error, 3 fatal) if the environment has it, else the setting ``log_level``.
        style: "glog", "text" (level and message) or "json".
        stream: Where to; standard error by default.

    Returns:
        The handler that shows it.

    Raises:
        ConfigError: There is no such level or style.
    """
    if style not in FORMATS:
        message = f"there is no log format {style!r}; known are {', '.join(FORMATS)}"
        raise ConfigError(message)
    least = _level(level)
    stop_logging()
    handler = _Shown(sys.stderr if stream is None else stream)
    formatters = {
        "glog": GlogFormatter(),
        "text": TextFormatter(),
        "json": JsonFormatter(),
    }
    handler.setFormatter(formatters[style])
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(least)
    return handler


def stop_logging() -> None:
    """Be quiet again."""
    logger = logging.getLogger(ROOT)
    for handler in [h for h in logger.handlers if isinstance(h, _Shown)]:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    if _Alone.logger:
        logger.propagate, _Alone.logger = True, False


class _Alone:
    """Whether Python's root logger is kept from showing what we say a second time."""

    logger = False


def keep_from_root() -> None:
    """Let nobody show what is logged but who ``start_logging`` has do so, until it ends."""
    logging.getLogger(ROOT).propagate, _Alone.logger = False, True


class _Shown(logging.StreamHandler[Writer]):
    """The handler that ``start_logging`` adds, to be told from those of others."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Go on without a record that cannot be shown, as where its file has no room."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def _level(level: str | int | None) -> int:
    if level is None:
        glog = os.environ.get("GLOG_minloglevel")  # noqa: SIM112 - glog's own spelling
        if glog is not None and glog.isdecimal():
            return GLOG_LEVELS[min(int(glog), len(GLOG_LEVELS) - 1)]
        level = str(settings.get("log_level"))
    if isinstance(level, int):
        return level
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        message = f"there is no log level {level!r}; write debug, info, warning or error"
        raise ConfigError(message)
    return known[level.upper()]


def _shown(text: str) -> str:
    """Return a record with special characters escaped; further lines of it are indented.

    So no line that begins as a record does comes from a name or a value in one.
    """
    return escaped(text).replace("\n", "\n    ")


def json_ready(value: Any) -> Any:
    """Return ``value`` as JSON knows it: numbers that it lacks become text, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
