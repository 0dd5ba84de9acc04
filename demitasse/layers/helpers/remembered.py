"""Blobs that a layer changes in one pass and reads in another: running averages, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.memory import SyncedMemory

__all__ = ["remembered"]


def remembered(blobs: Iterable[Blob]) -> Callable[[], None]:
    """Return a function that gives some blobs the shapes and the data again that they have now."""
    kept = [(blob, blob.shape, _copy(blob.data_memory)) for blob in blobs]

    def put_back() -> None:
        for blob, shape, data in kept:
            blob.reshape(shape)
            if data is None:
                blob.data_memory.clear()
            else:
                size = data.shape[0]
                blob.data_memory.mutable_gpu_data(discard=True)[:size] = data

    return put_back


def _copy(memory: SyncedMemory) -> Array | None:
    """Return a copy on the device, or None of a memory that holds nothing. Shape: (size,)."""
    if memory.cleared:
        return None
    memory.before_pass()  # what was written through a live view counts
    return memory.device.backend.xp.asarray(memory.gpu_data(), copy=True)
