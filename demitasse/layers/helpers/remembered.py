"""Blobs that a layer changes in one pass and reads in another: running averages, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from demitasse.backends.arrays import Array
from demitasse.blob import Blob

__all__ = ["remembered"]


def remembered(blobs: Iterable[Blob]) -> Callable[[], None]:
    """Return a function that gives some blobs the shapes and the data again that they have now."""
    kept = [(blob, blob.shape, None if blob.data_memory.cleared else _copy(blob)) for blob in blobs]

    def put_back() -> None:
        for blob, shape, data in kept:
            blob.reshape(shape)
            if data is None:
                blob.data_memory.clear()
            else:
                blob.write(data)

    return put_back


def _copy(blob: Blob) -> Array:
    blob.data_memory.before_pass()  # what was written through a live view counts
    data = blob.read()
    return blob.device.backend.xp.astype(data, data.dtype)  # which copies
