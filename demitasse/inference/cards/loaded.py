"""A model with or without a card, loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from demitasse.inference.cards.opening import Found
from demitasse.inference.cards.predictor import Predictor
from demitasse.inference.cards.running import Arrays, load_weights, run_net
from demitasse.net import Net

__all__ = ["Loaded"]


class Loaded:
    """A net with its weights, and what its card knows of images where it has one.

    Args:
        found: The model's files.
        device: Where it runs; None asks the configuration.
        outputs: Names of the blobs that are read; empty for those of the card or of the net.

    Attributes:
        net: The net, in phase TEST.
        outputs: Names of the blobs that are read.
        predictor: Prepares images and reads outputs; None without a card.
    """

    def __init__(self, found: Found, device: str | None, outputs: Sequence[str] = ()) -> None:
        self.predictor: Predictor | None = None
        if found.card is not None:
            card = replace(found.card, outputs=tuple(outputs) or found.card.outputs)
            self.predictor = Predictor(card, device=device)
            self.net, self.outputs = self.predictor.net, list(self.predictor.outputs)
        else:
            self.net = Net(found.net, "TEST", device=device, keep=list(outputs) or "outputs")
            self.outputs = list(outputs) or list(self.net.outputs)
            load_weights(self.net, found.weights)

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a batch."""
        return run_net(self.net, inputs, self.outputs)
