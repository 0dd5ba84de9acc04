"""Loading of stored parameters into nets, by layer name.

Source: Caffe, ``Net::CopyTrainedLayersFrom`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from demitasse.blob import Blob
from demitasse.core.axes import shape_string
from demitasse.core.deprecated import warn_once
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError, WeightsError
from demitasse.io.proto import BlobProto, NetParameter, read_net_arrays, stored_shape, upgrade_net
from demitasse.io.proto.zero_copy import Arrays
from demitasse.io.weights.batch_norm import converted_blobs
from demitasse.io.weights.formats import Parameters, read_arrays

if TYPE_CHECKING:
    from demitasse.net.structure import Structure

OnMismatch = Literal["raise", "skip"]
"""Policy for a layer whose parameters do not fit: raise an error, or skip the layer."""


@dataclass
class LoadReport:
    """Result of loading a file of weights.

    Attributes:
        loaded: Layers whose parameters were loaded.
        ignored: Layers of the file, with parameters, that the net does not have.
        missing: Layers of the net, with parameters, that were not loaded, mismatched ones included.
        repeated: Names that occur several times in the file; the last values count.
        mismatched: Skipped layers that do not fit, with the reasons; none of their parameters is
            loaded.
    """

    loaded: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)


def _message_pairs(
    name: str, mine: Sequence[Blob], theirs: Sequence[BlobProto], arrays: Arrays
) -> list[tuple[Blob, BlobProto]]:
    """Pair a layer's parameters with those of a caffemodel, of equal or legacy shapes."""
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
                    f"got {count} {what} of parameter {index} of layer {name!r}, expected "
                    f"{shape_string(blob.shape)}: the file is damaged"
                )
                expected, code = blob.count, ErrorCode.COUNT_MISMATCH
                raise WeightsError(
                    text, code=code, layer=name, param=index, got=count, expected=expected
                )
    return list(zip(mine, theirs, strict=True))


def _array_pairs(
    net: Structure, name: str, mine: list[Blob], arrays: dict[int, np.ndarray]
) -> list[tuple[Blob, np.ndarray]]:
    """Pair a layer's parameters with arrays of a file, which may lack shared parameters."""
    wanted = [
        i
        for i, blob in enumerate(mine)
        if i in arrays or any(blob is owner for owner in net.learnable_params)
    ]
    _same_number(name, len(wanted), len(arrays))
    if wanted != list(arrays):
        got, expected = (", ".join(map(str, indices)) for indices in (arrays, wanted))
        text = (
            f"got the parameters {got} of layer {name!r}, expected {expected}; rename the layer "
            "to keep its parameters"
        )
        raise WeightsError(text, code=ErrorCode.MISSING, layer=name, got=got, expected=expected)
    for index, array in arrays.items():
        blob = mine[index]
        legacy = (1,) * (4 - blob.num_axes) + blob.shape
        if array.shape != blob.shape and (array.shape != legacy or len(legacy) != 4):
            raise _misfit(name, index, blob.shape, array.shape)
        if array.dtype.kind not in "fiu":
            kind, code = str(array.dtype), ErrorCode.DTYPE_MISMATCH
            text = f"got parameter {index} of layer {name!r} of type {kind}, expected numbers"
            raise WeightsError(text, code=code, layer=name, param=index, got=kind)
    return [(mine[index], array.reshape(mine[index].shape)) for index, array in arrays.items()]


@contextmanager
def _skipping_mismatches(name: str, report: LoadReport, skip: bool) -> Iterator[None]:
    """Record a layer that does not fit if ``skip``; otherwise raise the error."""
    try:
        yield
        report.mismatched.pop(name, None)  # the last of several entries counts
    except (ShapeError, WeightsError) as error:
        if not skip:
            error.message += ", or skip it with on_mismatch='skip'"
            raise
        report.mismatched[name] = str(error)
        if name in report.loaded:
            report.loaded.remove(name)


def _target_blobs(
    net: Structure, name: str, has_blobs: bool, report: LoadReport
) -> list[Blob] | None:
    """Return the parameters of the net's layer of a name, or None, and update the report."""
    if name not in net.layer_numbers:
        if has_blobs:
            report.ignored.append(name)
        return None
    if has_blobs:
        (report.repeated if name in report.loaded else report.loaded).append(name)
    return net.layers[net.layer_numbers[name]].blobs


def _same_number(layer: str, have: int, given: int) -> None:
    if have != given:
        counts, code = f"got {given} parameters of layer {layer!r}", ErrorCode.COUNT_MISMATCH
        message = f"{counts}, expected {have}; rename the layer to keep its parameters"
        raise WeightsError(message, code=code, layer=layer, got=given, expected=have)


def _misfit(layer: str, index: int, mine: tuple[int, ...], theirs: tuple[int, ...]) -> ShapeError:
    ones = [n for n in mine if n != 1] == [n for n in theirs if n != 1]
    message = (
        f"got parameter {index} of layer {layer!r} of {shape_string(theirs)}, expected "
        f"{shape_string(mine)}{' (only axes of 1 differ)' if ones else ''}; rename the layer to "
        "train it from scratch"
    )
    return ShapeError(
        message, code=ErrorCode.SHAPE_MISMATCH, layer=layer, param=index, got=theirs, expected=mine
    )


def matched(layer: str, mine: Sequence[Blob], theirs: Sequence[Blob]) -> list[tuple[Blob, Blob]]:
    """Pair the parameters of two layers, which must agree in number and shapes."""
    got, expected, code = len(theirs), len(mine), ErrorCode.COUNT_MISMATCH
    if got != expected:
        message = f"layer {layer!r} has {expected} parameters here and {got} in the other net"
        raise NetError(message, code=code, layer=layer, got=got, expected=expected)
    for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.shape != b.shape:
            raise _misfit(layer, index, a.shape, b.shape)
    return list(zip(mine, theirs, strict=True))


NO_GRADIENT = np.empty(0, np.float32)


class LoadableNet(Protocol):
    """A net with ``Net.load``."""

    @property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """Parameters by layer name."""

    def load(
        self, source: str | os.PathLike[str], on_mismatch: OnMismatch = "raise", /
    ) -> LoadReport:
        """Load a file."""


def load_files(
    net: LoadableNet,
    files: Sequence[str | os.PathLike[str]],
    on_mismatch: OnMismatch = "raise",
    on_load: Callable[[LoadReport, str | os.PathLike[str]], None] | None = None,
) -> list[str]:
    """Load files in order, and report each; return layers without weights in any file."""
    missing = set(net.params) if files else set()
    for file in files:
        report = net.load(file, on_mismatch)
        if on_load is not None:
            on_load(report, file)
        missing &= set(report.missing)
    return [layer for layer in net.params if layer in missing]


def load_into(
    net: Structure,
    source: str | os.PathLike[str] | NetParameter,
    on_mismatch: OnMismatch = "raise",
) -> LoadReport:
    """Load parameters into a net, by layer name; all checks come before any change."""
    if str(on_mismatch) == "error":
        warn_once("on_mismatch='error'", "on_mismatch='raise'", stacklevel=4)
        on_mismatch = "raise"
    if on_mismatch not in {"raise", "skip"}:
        text, got = f"got on_mismatch {on_mismatch!r}, expected 'raise' or 'skip'", str(on_mismatch)
        raise ConfigError(text, code=ErrorCode.INVALID, field="on_mismatch", got=got)
    skip = on_mismatch == "skip"
    if isinstance(source, NetParameter):
        given = NetParameter()
        given.CopyFrom(source)
        upgrade_net(given)
        return _load_message(net, given, Arrays(), skip)
    path = Path(source)
    weights = read_arrays(path)
    message, arrays = read_net_arrays(path) if weights is None else (NetParameter(), Arrays())
    try:
        if weights is None:
            return _load_message(net, message, arrays, skip)
        return _load_arrays(net, weights, skip)
    except (NetError, ShapeError, WeightsError) as error:
        raise error.at(os.fspath(path)) from None


def _load_message(net: Structure, message: NetParameter, arrays: Arrays, skip: bool) -> LoadReport:
    report, pairs = LoadReport(), dict[str, list[tuple[Blob, BlobProto]]]()
    for layer in message.layer:
        mine = _target_blobs(net, layer.name, bool(layer.blobs), report)
        if mine is None:
            continue
        pairs.pop(layer.name, None)
        with _skipping_mismatches(layer.name, report, skip):
            stored_blobs = converted_blobs(layer, len(mine), arrays)
            pairs[layer.name] = _message_pairs(layer.name, mine, stored_blobs, arrays)
    with np.errstate(over="ignore", invalid="ignore"):  # doubles may overflow to infinity, as in C
        _copy(list(chain.from_iterable(pairs.values())), arrays)
    report.missing = [name for name in net.params if name not in report.loaded]
    return report


def _copy(pairs: Sequence[tuple[Blob, BlobProto]], arrays: Arrays) -> None:
    """Copy values and gradients to parameters; if the file is cut meanwhile, nothing changes.

    Values go from the file to parameters without contents, in parts. Parameters with contents get
    them after all values are in memory.
    """
    memories = [memory for blob, _ in pairs for memory in (blob.data_memory, blob.diff_memory)]
    if not all(memory.lazy or memory.cleared for memory in memories):
        values = [(blob, arrays.floats(p), arrays.floats(p, diff=True)) for blob, p in pairs]
        arrays.check_unchanged()
        with Uninterrupted():
            for blob, data, diff in values:
                blob.set_floats(data, diff)
        return
    before = [(memory, memory.initializer) for memory in memories]
    with Uninterrupted():
        try:
            for blob, proto in pairs:
                blob.set_floats(arrays.stored(proto), arrays.stored(proto, diff=True))
            arrays.check_unchanged()
        except BaseException:
            for memory, initializer in before:
                if initializer is None:
                    memory.clear()
                else:
                    memory.lazy_init(initializer)
            raise


def _load_arrays(net: Structure, weights: Parameters, skip: bool) -> LoadReport:
    report, pairs = LoadReport(), list[tuple[Blob, np.ndarray]]()
    for name, arrays in weights.items():
        mine = _target_blobs(net, name, bool(arrays), report)
        if mine is None:
            continue
        with _skipping_mismatches(name, report, skip):
            pairs += _array_pairs(net, name, mine, arrays)
    with np.errstate(over="ignore", invalid="ignore"), Uninterrupted():
        for blob, array in pairs:
            blob.set_floats(array.reshape(-1), NO_GRADIENT)
    report.missing = [name for name in net.params if name not in report.loaded]
    return report
