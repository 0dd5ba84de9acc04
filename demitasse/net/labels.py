"""Label check: labels that are no classes, for which losses are NaN and accuracies wrong."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse.core.log import number
from demitasse.errors import DataError, ErrorCode
from demitasse.layers.accuracy import Accuracy
from demitasse.layers.axes import ClassAxis
from demitasse.layers.base import Layer
from demitasse.layers.losses.base import LossLayer, Normalization
from demitasse.memory import Head
from demitasse.net.structure import Structure

LABELS = 1  # index of the bottom with the labels, of losses and accuracies

AT_HOST = (Head.HEAD_AT_CPU, Head.SYNCED)


class LabelCheck:
    """Checks the labels of a net after a forward pass; those of ``metrics`` after every one."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        layers = list(enumerate(structure.layers))
        self._losses = [index for index, layer in layers if isinstance(layer, LossLayer)]
        self.metrics = [index for index, layer in layers if isinstance(layer, Accuracy)]

    def after_pass(self, first: int, last: int, loss: float) -> None:
        """Check the labels of losses, if the loss is NaN, and the labels of accuracies (DataError).

        Checked are layers ``first`` to ``last``. Labels of accuracies are checked if they are on
        the host, where data layers and users put them: the check never waits for a device.
        """
        if not math.isfinite(loss):
            for index in self._losses:
                if first <= index <= last:
                    self._check(index)
        for index in self.metrics:
            labels = self._structure.blob_list[self._structure.bottom_ids(index)[LABELS]]
            if first <= index <= last and labels.data_memory.head in AT_HOST:
                self._check(index)

    def _check(self, index: int) -> None:
        layer = self._structure.layers[index]
        axis = getattr(layer, "axis", None)
        if not isinstance(axis, ClassAxis):
            return
        blob = self._structure.bottom_ids(index)[LABELS]
        labels = self._structure.blob_list[blob].cpu_data().reshape(-1)
        if not labels.size or (labels.min() > -1 and labels.max() < axis.classes):
            return
        whole = np.trunc(labels)  # as in the layers
        fine = (whole >= 0) & (whole < axis.classes)
        ignored = _ignored(layer)
        if ignored is not None:
            fine |= whole == ignored
        if not fine.all():
            raise self._fault(index, blob, int(fine.argmin()), axis.classes)

    def _fault(self, index: int, blob: int, first: int, classes: int) -> DataError:
        """Return the error for the label at index ``first`` of a layer's blob of labels."""
        structure = self._structure
        layer, labels = structure.layers[index], structure.blob_list[blob]
        image = first // (labels.count // labels.shape[0]) if labels.shape else 0
        label = number(float(labels.cpu_data().reshape(-1)[first]))
        field = "accuracy_param" if isinstance(layer, Accuracy) else "loss_param"
        advice = ["correct the labels", "give the layer before one output per class"]
        if isinstance(layer, Accuracy) or _normalization(layer) is not None:
            advice.append(f"set {field}.ignore_label")
        name = list(structure.blobs)[blob]
        message = (
            f"got label {label} for image {image} of the batch (blob {name!r}), expected a class "
            f"of the scores, 0 to {classes - 1}; {', '.join(advice[:-1])}, or {advice[-1]}"
        )
        details: Any = {"blob": name, "image": image, "got": label, "expected": classes}
        record = self._record(blob, image)
        error = DataError(message, *record, code=ErrorCode.OUT_OF_RANGE, **details)
        return error.at(f"layer {layer.name!r} ({layer.type})", layer=layer.name)

    def _record(self, blob: int, image: int) -> Sequence[str]:
        """Return the database or list of an image of a blob, and the key of its record.

        Empty if the blob is not the top of a data layer with records.
        """
        structure = self._structure
        for index in reversed(range(len(structure.layers))):
            if blob in structure.top_ids(index):
                layer = structure.layers[index]
                if layer.type == "Split":
                    [blob] = structure.bottom_ids(index)
                    continue
                return layer.record_of(image) or ()
        return ()


def _ignored(layer: Layer) -> int | None:
    """Return the label that a layer ignores, or None."""
    if isinstance(layer, Accuracy):
        return layer.ignore_label
    normalization = _normalization(layer)
    return None if normalization is None else normalization.ignore_label


def _normalization(layer: Layer) -> Normalization | None:
    """Return the normalization of a loss that may ignore a label, or None."""
    found = getattr(layer, "normalization", None)
    return found if isinstance(found, Normalization) else None
