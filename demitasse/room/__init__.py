"""Room: how much memory there is, who holds what of it, and sizes as people write them."""

from demitasse.room.info import MemoryInfo
from demitasse.room.ledger import Share, ledger
from demitasse.room.sizes import bytes_text, read_size

__all__ = ["MemoryInfo", "Share", "bytes_text", "ledger", "read_size"]
