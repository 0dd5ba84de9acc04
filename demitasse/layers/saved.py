"""What a layer's backward needs from its forward."""

from __future__ import annotations

from typing import Protocol

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.errors import ErrorCode, NetError

__all__ = ["Saved"]


class Stamped(Protocol):
    """What runs forward passes, and numbers them in ``stamp``."""

    stamp: int


class Saved:
    """State that backward needs from forward, in a fixed buffer, stamped with its pass.

    Reading what another pass has left is an error rather than a wrong gradient.

    Args:
        layer: Counts its forward passes.
        name: What the state is called.
        blob: The buffer.
    """

    def __init__(self, layer: Stamped, name: str, blob: Blob) -> None:
        self.blob, self.name = blob, name
        self._layer, self._stamp = layer, -1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return self.blob.shape

    def write(self, array: Array) -> None:
        """Keep ``array``, which must have exactly the buffer's shape."""
        self.blob.write(array)
        self._stamp = self._layer.stamp

    def buffer(self) -> Array:
        """Return the device array, to be overwritten completely in this pass."""
        self._stamp = self._layer.stamp
        return self.blob.buffer()

    def read(self) -> Array:
        """Return what this pass's forward has kept.

        Raises:
            NetError: The layer's last forward did not write it.
        """
        if self._stamp != self._layer.stamp:
            message = (
                f"backward needs {self.name!r} from the layer's last forward pass, which did not "
                "compute it; run forward again before backward"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE, blob=self.name)
        return self.blob.read()
