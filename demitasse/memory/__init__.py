"""Memory: a host side, a device side, and which is newest; buffers that several memories share."""

from demitasse.memory.guard import transfer_guard
from demitasse.memory.synced import DEVICE_HEADS, Head, SyncedMemory
from demitasse.memory.transfers import transfers

__all__ = ["DEVICE_HEADS", "Head", "SyncedMemory", "transfer_guard", "transfers"]
