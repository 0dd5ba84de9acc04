"""LRCN's second half, an LSTM over the features of a film's pictures; LSTMs over characters."""

from nets.writer import Writer

__all__ = ["char_rnn", "lrcn"]

PICTURES, CHARACTERS = 16, 32
"""Steps of a sequence."""


def lrcn(batch: int, train: bool, scale: int = 1) -> str:
    """An LSTM of 256 over sixteen rows of 4096 values, and a class for each of them."""
    steps = PICTURES, batch
    net = Writer("LRCN", (*steps, 4096 // scale), train, labels=steps)
    net.input("cont", steps)
    net.lstm("lstm", 256 // scale, "cont")
    net.ip("scores", 101, axis=2)
    return net.end(axis=2)


def char_rnn(batch: int, train: bool, scale: int = 1) -> str:
    """Two LSTMs of 256 over the embeddings of characters, and the next of eighty for each."""
    steps = CHARACTERS, batch
    net = Writer("CharRNN", (*steps, 64), train, labels=steps)
    net.input("cont", steps)
    for number in (1, 2):
        net.lstm(f"lstm{number}", 256 // scale, "cont")
    net.ip("scores", 80, axis=2)
    return net.end(axis=2)
