"""Where the numbers of a training run go besides the log: files of JSON lines, and services."""

from demitasse.tracking.broadcast import Broadcast
from demitasse.tracking.json_lines import JsonLines
from demitasse.tracking.logger import Logger
from demitasse.tracking.targets import open_logger

__all__ = ["Broadcast", "JsonLines", "Logger", "open_logger"]
