"""Model cards: small files that describe how to run a net on images.

A card (``card``, ``card_file``) contains the net, the weights, the preprocessing of images and the
meaning of the outputs. Cards of published models are included (``published``, ``zoo``).
``Predictor`` runs a net by its card: images in, predictions out.
"""

from demitasse.core.deprecated import deprecated_names
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.card_file import read_card
from demitasse.inference.cards.model_files import find_card, load_model
from demitasse.inference.cards.predictions import (
    Box,
    Boxes,
    Classes,
    Features,
    Image,
    Prediction,
    Segments,
)
from demitasse.inference.cards.predictor import Predictor

__all__ = [
    "Box", "Boxes", "Card", "Classes", "Features", "Image", "Prediction", "Predictor", "Segments",
    "find_card", "load_model", "read_card",
]  # fmt: skip

__getattr__ = deprecated_names(__name__, {"Answer": "Prediction"})
