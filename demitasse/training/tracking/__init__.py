"""Loggers of the numbers of a training run: files of JSON lines, and services."""

from demitasse.training.tracking.json_lines import JsonLines
from demitasse.training.tracking.logger import Logger, LoggerGroup, open_logger

__all__ = ["JsonLines", "Logger", "LoggerGroup", "open_logger"]
