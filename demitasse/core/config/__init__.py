"""Settings: their names and defaults, the source of each value, and trusted settings files."""

from demitasse.core.config.store import Settings, Value, seed, settings
from demitasse.core.config.table import TABLE, Setting

__all__ = ["TABLE", "Setting", "Settings", "Value", "seed", "settings"]
