"""Run a net on batches of items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from demitasse.errors import ConfigError, DataError, ErrorCode, NetError
from demitasse.inference.cards.model_files import LoadedModel, ModelFiles
from demitasse.inference.cards.published import file_hashes
from demitasse.inference.prediction.items import Arrays, Items, Records


class BatchRunner:
    """Runs a model, with or without a card, on batches of items.

    Args:
        files: The model's files.
        device: Device of the net; defaults to the configuration's.
        outputs: Names of the returned blobs; empty for those of the card or of the net.

    Attributes:
        net: The net.
        outputs: Names of the returned blobs.
    """

    def __init__(self, files: ModelFiles, device: str | None, outputs: Sequence[str] = ()) -> None:
        self._files, self._model = files, LoadedModel(files, device, outputs)
        self.net, self.outputs = self._model.net, self._model.outputs
        self._predictor = self._model.predictor

    def identity(self) -> list[str]:
        """Return texts that identify the model by the content of its files."""
        files = [self._files.net, *self._files.weights]
        card = self._files.card
        if card is not None and isinstance(card.preprocess.mean, Path):
            files.append(card.preprocess.mean)
            card = replace(card, preprocess=replace(card.preprocess, mean=()))
        digests = [file_hashes(path)[1] for path in files]
        text = "" if card is None else repr(replace(card, net=None, weights=()))
        return [*digests, text, *self.outputs, str(self.net.device)]

    def values(self, items: Items, batch: range) -> dict[str, np.ndarray]:
        """Return the outputs of a batch of items. Shapes: (len(batch), ...).

        Raises:
            DataError: An item cannot be read, or the shapes of the items differ.
            NetError: The rows of an output differ from the number of items.
        """
        inputs = items.rows(batch) if isinstance(items, Arrays) else self._stacked(items, batch)
        found = self._model.run(inputs)
        for name, array in found.items():
            if array.shape[:1] != (len(batch),):
                message = (
                    f"output {name!r} is {array.shape} for {len(batch)} items, expected one row "
                    "for each; name other outputs with --output, or use --format jsonl with a card"
                )
                raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, blob=name, got=array.shape)
        return found

    def lines(self, items: Items, batch: range) -> list[str]:
        """Return predictions for a batch of images, as lines of JSON.

        Raises:
            ConfigError: The model has no card, or the items are not images.
        """
        if self._predictor is None or isinstance(items, Arrays):
            message = (
                "JSON lines are predictions for images by a model's card; without a card, or for "
                "arrays, use --format npz"
            )
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="format", got="jsonl")
        color = self._predictor.color
        lines = []
        results = self._predictor.stream(batch, lambda i: items.pixels(i, color), len(batch))
        for index, one in results:
            entry = {"error": one.message} if isinstance(one, DataError) else one.as_dict()
            lines.append(json.dumps({"item": items.names[index], **entry}))
        return lines

    def _stacked(self, items: Items, batch: range) -> dict[str, np.ndarray]:
        """Return images preprocessed by the card, or raw records; float32."""
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
                "the preprocessing of images for this net is unknown; write a card (demitasse "
                "card), or give arrays"
            )
            raise ConfigError(message, code=ErrorCode.MISSING, field="card")
        shapes = sorted({row.shape for row in rows})
        if len(shapes) > 1:
            message = (
                f"items {batch.start} to {batch.stop - 1} have shapes {shapes}; the shapes in a "
                "batch must be equal: use --batch 1"
            )
            raise DataError(message, code=ErrorCode.SHAPE_MISMATCH, got=shapes)
        return {name: np.stack(rows)}
