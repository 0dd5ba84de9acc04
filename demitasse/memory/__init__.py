"""Memory: a host side and a device side, of which a head records the newest; shared buffers."""

from demitasse.memory.synced import DEVICE_HEADS, Head, SyncedMemory
from demitasse.memory.transfers import transfer_guard, transfers

__all__ = ["DEVICE_HEADS", "Head", "SyncedMemory", "transfer_guard", "transfers"]
