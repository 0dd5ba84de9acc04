"""Logging through the standard library's logger ``demitasse``, in glog's format like Caffe.

The logger is silent until a program adds a handler, or calls :func:`start_logging` as the command
line does.
"""

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from demitasse.core.config import settings
from demitasse.core.text import escaped
from demitasse.errors import ConfigError, ErrorCode

ROOT = "demitasse"
LETTERS = {"DEBUG": "D", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "F"}
GLOG_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
FORMATS = ("glog", "text", "json")


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, given its ``__name__``."""
    return logging.getLogger(name if name.split(".", maxsplit=1)[0] == ROOT else f"{ROOT}.{name}")


def number(value: float) -> str:
    """Format a number like a C++ stream: six significant digits."""
    return f"{value:g}"


class GlogFormatter(logging.Formatter):
    """Lines in glog's format, which parsers of Caffe's logs read.

    For example ``I1120 12:00:00.000000  4242 solver.py:239] Iteration 0, lr = 0.01``: letter of the
    level, month and day, local time, process, file and line, message. An exception follows on
    lines of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        when = datetime.fromtimestamp(record.created)
        letter = LETTERS.get(record.levelname, record.levelname[:1])
        head = f"{letter}{when:%m%d %H:%M:%S.%f} {record.process or 0:>5} {record.filename}"
        line = f"{head}:{record.lineno}] {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return _safe(line)


class TextFormatter(logging.Formatter):
    """Level and message, as in ``WARNING: the disk is nearly full``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        return _safe(f"{record.levelname}: {super().format(record)}")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the record's ``metrics`` if any.

    Training records carry their numbers in ``metrics``, so that programs need not parse the text.
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
    """Target of text, such as an open file."""

    def write(self, text: str, /) -> object:
        """Write a piece of text."""


def start_logging(
    level: str | int | None = None, style: str = "glog", stream: Writer | None = None
) -> logging.Handler:
    """Write Demitasse's log to a stream; return the handler, which replaces an earlier one.

    Args:
        level: Lowest level that is written; defaults to ``GLOG_minloglevel`` of the environment
            (0 info, 1 warning, 2 error, 3 fatal), else the setting ``log_level``.
        style: "glog", "text" (level and message) or "json".
        stream: Target; defaults to standard error.

    Raises:
        ConfigError: The level or the style is unknown.
    """
    if style not in FORMATS:
        message = f"unknown log format {style!r}; known are {', '.join(FORMATS)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="style", got=style)
    lowest = _level(level)
    stop_logging()
    handler = _Handler(sys.stderr if stream is None else stream)
    formatters = {"glog": GlogFormatter(), "text": TextFormatter(), "json": JsonFormatter()}
    handler.setFormatter(formatters[style])
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(lowest)
    return handler


def stop_logging() -> None:
    """Remove the handler of ``start_logging``."""
    logger = logging.getLogger(ROOT)
    for handler in [h for h in logger.handlers if isinstance(h, _Handler)]:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    if _Handler.propagation_stopped:
        logger.propagate, _Handler.propagation_stopped = True, False


def stop_propagation() -> None:
    """Keep records from Python's root logger, which would repeat them, until ``stop_logging``."""
    logging.getLogger(ROOT).propagate, _Handler.propagation_stopped = False, True


class _Handler(logging.StreamHandler[Writer]):
    """Handler of ``start_logging``; its class distinguishes it from a program's handlers."""

    propagation_stopped = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop a record that cannot be written, for instance to a full disk."""
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
        message = f"unknown log level {level!r}; use debug, info, warning or error"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="level", got=level)
    return known[level.upper()]


def _safe(text: str) -> str:
    """Escape special characters, and indent further lines.

    Names and values in a record therefore cannot forge the beginning of another record.
    """
    return escaped(text).replace("\n", "\n    ")


def json_ready(value: Any) -> Any:
    """Return ``value`` in JSON's types: NaN becomes text; tuples and arrays become lists."""
    if hasattr(value, "tolist"):  # an array or a number of NumPy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
