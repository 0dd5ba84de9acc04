"""LRCN's second half: an LSTM over the features of a film's pictures."""

from nets.writer import Writer

__all__ = ["lrcn"]

PICTURES = 16
"""Steps of a sequence."""


def lrcn(batch: int, train: bool, scale: int = 1) -> str:
    """An LSTM of 256 over sixteen rows of 4096 values, and a class for each of them."""
    net = Writer("LRCN", (PICTURES, batch, 4096 // scale), train)
    net.input("cont", (PICTURES, batch))
    net.lstm("lstm", 256 // scale, "cont")
    net.ip("scores", 101, axis=2)
    return net.end(axis=2)
