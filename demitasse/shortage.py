"""What a lack of memory is called, whatever raised it."""

from __future__ import annotations

import errno

from demitasse.errors import DemitasseError, DeviceError

__all__ = ["placed"]


def placed(error: Exception, place: str) -> Exception:
    """Return an error that says where it happened; a lack of memory becomes a DeviceError."""
    lacks = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if lacks or isinstance(error, MemoryError):
        why = f" ({error})" if str(error) else ""
        message = (
            f"the host has no memory left{why}; make the batch, the input or the layer smaller"
        )
        shortage = DeviceError(message)
        shortage.__cause__ = error
        return shortage.at(place)
    return error.at(place) if isinstance(error, DemitasseError) else error
