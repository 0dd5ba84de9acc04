"""A convolutional net for sentences."""

from nets.writer import Writer

__all__ = ["text_cnn"]

WORDS, NUMBERS = 40, 100
"""Words of a sentence, numbers of a word."""


def text_cnn(batch: int, train: bool, scale: int = 1) -> str:
    """Filters over three, four and five words, the largest of each, and two classes."""
    net = Writer("Text-CNN", (batch, 1, WORDS, NUMBERS), train)
    found = []
    for words in (3, 4, 5):
        net.conv(f"conv{words}", 100 // scale, (words, NUMBERS), "data")
        net.relu(f"relu{words}")
        pool = "pooling_param { pool: MAX global_pooling: true }"
        found.append(net.layer("Pooling", f"pool{words}", pool))
    net.concat("found", *found)
    net.dropout("drop", 0.5)
    net.ip("classifier", 2)
    return net.end()
