"""Settings: which there are, where each value comes from, and which files are trusted."""

from demitasse.core.config.store import Settings, Value, settings
from demitasse.core.config.table import TABLE, Setting

__all__ = ["TABLE", "Setting", "Settings", "Value", "settings"]
