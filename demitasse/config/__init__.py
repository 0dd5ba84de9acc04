"""Settings: which there are, where each value comes from, and which files are trusted."""

from demitasse.config.store import Settings, Value, settings
from demitasse.config.table import TABLE, Setting

__all__ = ["TABLE", "Setting", "Settings", "Value", "settings"]
