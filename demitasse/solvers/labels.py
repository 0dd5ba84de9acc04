"""Labels that are no classes: they make a loss NaN, which does not say why."""

from __future__ import annotations

import numpy as np

from demitasse.errors import DataError
from demitasse.layers.helpers.classes import ClassAxis
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.losses.targets import Normalization
from demitasse.log import number
from demitasse.net import Net

__all__ = ["check_labels"]


def check_labels(net: Net) -> None:
    """Check the labels that a net's losses were computed from, as they are since its last pass.

    This waits for the device and looks at every label: it is for losses that are NaN.

    Raises:
        DataError: One is neither a class nor ignored; says which, and of which image of the batch.
    """
    for index, layer in enumerate(net.layers):
        axis = getattr(layer, "axis", None)
        if not isinstance(layer, LossLayer) or not isinstance(axis, ClassAxis):
            continue
        normalization = getattr(layer, "normalization", None)
        ignored = normalization.ignore_label if isinstance(normalization, Normalization) else None
        blob = net.structure.bottom_ids(index)[1]
        labels = np.trunc(net.structure.blob_list[blob].cpu_data().reshape(-1))  # as losses do
        fine = (labels >= 0) & (labels < axis.classes)
        if ignored is not None:
            fine |= labels == ignored
        if not fine.all():
            first = int(fine.argmin())
            image = first * len(net.structure.blob_list[blob].cpu_data()) // labels.size
            message = (
                f"label {number(float(labels[first]))} of image {image} of the batch (blob "
                f"{net.blob_names[blob]!r}) is none of the classes 0 to {axis.classes - 1} that "
                "the scores have; mend the labels, give the layer before as many outputs as there "
                "are classes, or name a label to pass over with loss_param.ignore_label"
            )
            place = f"layer {layer.name!r} ({layer.type})"
            raise DataError(message).at(place)
