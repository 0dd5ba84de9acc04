"""A net with the lines of its layers, which messages cannot store."""

from collections.abc import Sequence
from typing import NamedTuple

from demitasse.io.proto.caffe_pb2 import NetParameter

__all__ = ["ReadNet"]


class ReadNet(NamedTuple):
    """A net, and the line of each layer.

    Attributes:
        message: The net.
        source: The file, or another name for messages.
        lines: Line of each layer, from 1; None for a layer without a line, empty for a net that
            was not read from a file.
    """

    message: NetParameter
    source: str = ""
    lines: Sequence[int | None] = ()

    def origin(self, index: int) -> str:
        """Return ``file:line`` of layer ``index``, or an empty string if unknown."""
        line = self.lines[index] if index < len(self.lines) else None
        return "" if line is None else f"{self.source}:{line}"
