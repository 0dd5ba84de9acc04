"""Capacity: how much memory there is, who holds what of it, and sizes as people write them."""

from demitasse.core.capacity.info import MemoryInfo
from demitasse.core.capacity.ledger import Share, ledger
from demitasse.core.capacity.sizes import bytes_text, read_size

__all__ = ["MemoryInfo", "Share", "bytes_text", "ledger", "read_size"]
