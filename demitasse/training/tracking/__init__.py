"""Loggers of the numbers of a training run: files of JSON lines, and services."""

from demitasse.training.tracking.logger import JsonLines, Logger, LoggerGroup, open_logger

__all__ = ["JsonLines", "Logger", "LoggerGroup", "open_logger"]
