"""Model cards: what a net needs to be run on images, in a small file beside it.

A card (``card``, read by ``reading``) says which net and weights, how images are prepared, and what
the outputs mean. Cards of published models come along (``published``, ``zoo``). ``Predictor`` is a
net with its card: images in, answers out.
"""

from demitasse.inference.cards.answers import Answer, Box, Boxes, Classes, Features, Segments
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.opening import find_card, load_model
from demitasse.inference.cards.predictor import Predictor
from demitasse.inference.cards.reading import read_card

__all__ = [
    "Answer",
    "Box",
    "Boxes",
    "Card",
    "Classes",
    "Features",
    "Predictor",
    "Segments",
    "find_card",
    "load_model",
    "read_card",
]
