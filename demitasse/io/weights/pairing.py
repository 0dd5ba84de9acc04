"""Which stored parameters belong to which of a net's, and what does not fit.

Source: Caffe, ``Net::CopyTrainedLayersFrom`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from demitasse.blob import Blob
from demitasse.core.axes import shape_string
from demitasse.errors import NetError, ShapeError, WeightsError
from demitasse.io.proto import BlobProto, stored_shape
from demitasse.io.proto.zero_copy.read import Arrays
from demitasse.io.weights.store import ParameterStore

__all__ = [
    "LoadReport",
    "OnMismatch",
    "array_pairs",
    "finished",
    "fits",
    "matched",
    "message_pairs",
    "target",
]

OnMismatch = Literal["error", "skip"]
"""What to do with a layer whose parameters do not fit: refuse the file, or leave the layer out."""


@dataclass
class LoadReport:
    """What became of the layers of a weights file.

    Attributes:
        loaded: Layers whose parameters were taken.
        ignored: Layers of the file with parameters that the net does not have.
        missing: Layers of the net with parameters that were not loaded: the file does not have
            them, or they are among the mismatched.
        repeated: Names that occur more than once in the file; the last one's values count.
        mismatched: Layers that were left out because they do not fit, and why. Of such a layer no
            parameter is taken.
    """

    loaded: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)


def message_pairs(
    name: str, mine: Sequence[Blob], theirs: Sequence[BlobProto], arrays: Arrays
) -> list[tuple[Blob, BlobProto]]:
    """Pair a layer's parameters with those of a caffemodel.

    Raises:
        ShapeError: A shape differs, the four axes of old files apart.
        WeightsError: The numbers of parameters, or of values in one, differ.
    """
    _same_number(name, len(mine), len(theirs))
    for index, (blob, proto) in enumerate(zip(mine, theirs, strict=True)):
        if not blob.shape_equals(proto):
            raise _misfit(name, index, blob.shape, stored_shape(proto))
        for what, diff in (("values", False), ("gradients", True)):
            try:
                count = arrays.count(proto, diff)
            except WeightsError as error:
                place = f"parameter {index} of layer {name!r}"
                raise error.at(place) from None
            if count != blob.count and (count or not diff):
                text = (
                    f"parameter {index} of layer {name!r} has {count} {what} for its shape "
                    f"{shape_string(blob.shape)}: the file is damaged; mend it"
                )
                raise WeightsError(text)
    return list(zip(mine, theirs, strict=True))


def array_pairs(
    net: ParameterStore, name: str, mine: list[Blob], arrays: dict[int, np.ndarray]
) -> list[tuple[Blob, np.ndarray]]:
    """Pair a layer's parameters with those of a file of arrays, which may lack what is shared.

    Raises:
        ShapeError: A shape differs, the four axes of old files apart.
        WeightsError: The numbers of the parameters differ, or one holds no numbers.
    """
    wanted = [i for i, blob in enumerate(mine) if i in arrays or not _is_shared(net, blob)]
    _same_number(name, len(wanted), len(arrays))
    if wanted != list(arrays):
        text = (
            f"the source has parameters {_listed(arrays)} of layer {name!r}, the net has "
            f"{_listed(wanted)}; rename the layer to leave it as it is"
        )
        raise WeightsError(text)
    for index, array in arrays.items():
        blob = mine[index]
        if blob.shape != array.shape and not _in_four_axes(blob, array.shape):
            raise _misfit(name, index, blob.shape, array.shape)
        if array.dtype.kind not in "fiu":
            text = f"parameter {index} of layer {name!r} holds {array.dtype}, not numbers; mend it"
            raise WeightsError(text)
    return [(mine[index], array.reshape(mine[index].shape)) for index, array in arrays.items()]


def _in_four_axes(blob: Blob, shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of a parameter as old files have it: with leading axes of 1."""
    return len(shape) == 4 and shape == (1,) * (4 - blob.num_axes) + blob.shape


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


@contextmanager
def fits(name: str, report: LoadReport, skip: bool) -> Iterator[None]:
    """With ``skip``, report a layer that does not fit as mismatched; otherwise raise the error."""
    try:
        yield
        report.mismatched.pop(name, None)  # of several in the file the last one counts
    except (ShapeError, WeightsError) as error:
        if not skip:
            error.message += ", or leave it out with on_mismatch='skip'"
            raise
        report.mismatched[name] = str(error)
        if name in report.loaded:
            report.loaded.remove(name)


def target(
    net: ParameterStore, name: str, has_blobs: bool, report: LoadReport
) -> list[Blob] | None:
    """Return the parameters of the net's layer of a name, and report what becomes of the stored.

    Args:
        net: The net.
        name: A layer of the file.
        has_blobs: Whether the file has parameters for it.
        report: The layer is added to those loaded, repeated or ignored.

    Returns:
        None if the net has no such layer.
    """
    if name not in net.layer_numbers:
        if has_blobs:
            report.ignored.append(name)
        return None
    if has_blobs:
        (report.repeated if name in report.loaded else report.loaded).append(name)
    return net.layers[net.layer_numbers[name]].blobs


def _is_shared(net: ParameterStore, blob: Blob) -> bool:
    return not any(blob is owner for owner in net.learnable_params)


def finished(net: ParameterStore, report: LoadReport) -> LoadReport:
    """Add the layers of the net that were not loaded to the report, and return it."""
    report.missing = [name for name in net.params if name not in report.loaded]
    return report


def _same_number(layer: str, have: int, given: int) -> None:
    if have != given:
        message = (
            f"layer {layer!r} has {have} parameters, the source has {given}; "
            "rename the layer to leave it as it is"
        )
        raise WeightsError(message)


def _misfit(layer: str, index: int, mine: tuple[int, ...], theirs: tuple[int, ...]) -> ShapeError:
    ones = [n for n in mine if n != 1] == [n for n in theirs if n != 1]
    message = (
        f"cannot copy parameter {index} of layer {layer!r}: the source has {shape_string(theirs)}, "
        f"the net {shape_string(mine)}{' (only axes of 1 differ)' if ones else ''}; rename the "
        "layer to learn it afresh"
    )
    return ShapeError(message)


def matched(layer: str, mine: Sequence[Blob], theirs: Sequence[Blob]) -> list[tuple[Blob, Blob]]:
    """Pair the parameters of two layers, which must agree in number and shapes."""
    if len(mine) != len(theirs):
        message = f"{layer} has {len(mine)} parameters here and {len(theirs)} in the other net"
        raise NetError(message)
    for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.shape != b.shape:
            raise _misfit(layer, index, a.shape, b.shape)
    return list(zip(mine, theirs, strict=True))
