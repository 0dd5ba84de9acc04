"""A net that makes answers or outputs of items, a batch at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from demitasse.errors import ConfigError, DataError, NetError
from demitasse.inference.cards.digests import file_digests
from demitasse.inference.cards.loaded import Loaded
from demitasse.inference.cards.opening import Found
from demitasse.inference.prediction.items import Arrays, Items, Records

__all__ = ["Maker"]


class Maker:
    """A model, with or without a card.

    Args:
        found: Its files.
        device: Where it runs; None asks the configuration.
        outputs: Names of the blobs that are read; empty for those of the card or of the net.

    Attributes:
        net: The net.
        outputs: Names of the blobs that are read.
    """

    def __init__(self, found: Found, device: str | None, outputs: Sequence[str] = ()) -> None:
        self._found, self._model = found, Loaded(found, device, outputs)
        self.net, self.outputs = self._model.net, self._model.outputs
        self._predictor = self._model.predictor

    def described(self) -> list[str]:
        """Return texts that are others for another model, whatever its files are called."""
        files = [self._found.net, *self._found.weights]
        card = self._found.card
        if card is not None and isinstance(card.preprocess.mean, Path):
            files.append(card.preprocess.mean)
            card = replace(card, preprocess=replace(card.preprocess, mean=()))
        digests = [file_digests(path)[1] for path in files]
        said = "" if card is None else repr(replace(card, net=None, weights=()))
        return [*digests, said, *self.outputs, str(self.net.device)]

    def values(self, items: Items, batch: range) -> dict[str, np.ndarray]:
        """Return the outputs of a batch of items. Shapes: (len(batch), ...).

        Raises:
            DataError: An item cannot be read, or is of another shape than those beside it.
            NetError: An output has no row for each item.
        """
        inputs = items.rows(batch) if isinstance(items, Arrays) else self._stacked(items, batch)
        found = self._model.run(inputs)
        for name, array in found.items():
            if array.shape[:1] != (len(batch),):
                message = (
                    f"output {name!r} is {array.shape} for {len(batch)} items, so it has no row "
                    "for each; name others with --output, or take --format jsonl with a card"
                )
                raise NetError(message)
        return found

    def lines(self, items: Items, batch: range) -> list[str]:
        """Return what the model says of a batch of images, as lines of JSON.

        Raises:
            ConfigError: The model has no card, or the items are no images.
        """
        if self._predictor is None or isinstance(items, Arrays):
            message = (
                "answers as JSON are what a model's card says of images; without a card, or of "
                "arrays, take --format npz"
            )
            raise ConfigError(message)
        color = self._predictor.color
        lines = []
        answers = self._predictor.stream(batch, lambda i: items.pixels(i, color), len(batch))
        for index, answer in answers:
            said = {"error": answer.message} if isinstance(answer, DataError) else answer.as_dict()
            lines.append(json.dumps({"item": items.names[index], **said}))
        return lines

    def _stacked(self, items: Items, batch: range) -> dict[str, np.ndarray]:
        """Return images, prepared by the card, or records as they are; float32."""
        assert not isinstance(items, Arrays)
        if self._predictor is not None:
            prepare, name = self._predictor.prepare, self._predictor.input
            color = self._predictor.color
            rows = [prepare(items.pixels(index, color)).values for index in batch]
        elif isinstance(items, Records) and len(self.net.inputs) == 1:
            name = self.net.inputs[0]
            rows = [items.pixels(index, "native").astype(np.float32) for index in batch]
        else:
            message = (
                "how images are prepared for this net is not known; write a card (demitasse card), "
                "or give arrays"
            )
            raise ConfigError(message)
        shapes = sorted({row.shape for row in rows})
        if len(shapes) > 1:
            message = (
                f"items {batch.start} to {batch.stop - 1} have shapes {shapes}; those of a batch "
                "must be equal: take --batch 1"
            )
            raise DataError(message)
        return {name: np.stack(rows)}
