"""Where the numbers of a training run go besides the log: files of JSON lines, and services."""

from demitasse.training.tracking.broadcast import Broadcast
from demitasse.training.tracking.json_lines import JsonLines
from demitasse.training.tracking.logger import Logger
from demitasse.training.tracking.targets import open_logger

__all__ = ["Broadcast", "JsonLines", "Logger", "open_logger"]
