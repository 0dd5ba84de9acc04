"""A net together with where its layers are written, which messages themselves cannot note."""

from collections.abc import Sequence
from typing import NamedTuple

from demitasse.io.proto.caffe_pb2 import NetParameter

__all__ = ["ReadNet"]


class ReadNet(NamedTuple):
    """A net, and where each of its layers is written.

    Attributes:
        message: The net.
        source: The file it was read from, or what else messages shall call it.
        lines: For each layer the line on which it begins, from 1; None for a layer that is not in
            the file, none at all for a net that was not read from one.
    """

    message: NetParameter
    source: str = ""
    lines: Sequence[int | None] = ()

    def origin(self, index: int) -> str:
        """``file:line`` of layer ``index``, or an empty string where it is not known."""
        line = self.lines[index] if index < len(self.lines) else None
        return "" if line is None else f"{self.source}:{line}"
