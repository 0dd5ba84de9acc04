"""Batches of ``Solver.fit``: from arrays, or from an iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.blob.blob import host_array, is_on
from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.layers.checks import at_least

if TYPE_CHECKING:
    from demitasse.training.solver import Solver

Batch = dict[str, Any]  # an array for each input


def batches(
    solver: Solver, data: Any, labels: Any, epochs: int, batch_size: int | None, *, shuffle: bool
) -> Iterator[Batch]:
    """Yield the batches of all epochs; see ``Solver.fit``."""
    net = solver.net
    if not net.inputs:
        message = (
            f"net {net.name!r} has no inputs: its data layers read the data; call solve() or "
            "step(n), or give the net Input layers"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if solver.param.iter_size != 1:
        message = (
            f"got iter_size {solver.param.iter_size}, expected 1: fit updates after each batch; "
            "give a larger batch_size"
        )
        raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="iter_size")
    for field, value in (("epochs", epochs), ("batch_size", batch_size)):
        if value is not None:
            at_least(1, field, value)
    arrays = _arrays(net.inputs, data, labels, net.device)
    size = batch_size or net.input_shapes[net.inputs[0]][0]
    for epoch in range(epochs if arrays is not None or not isinstance(data, Iterator) else 1):
        if arrays is None:
            for batch in data:
                yield _by_input(net.inputs, batch, net.device)
        else:
            total = len(next(iter(arrays.values())))
            order = np.arange(total)
            if shuffle:
                order = np.random.default_rng([net.seed, solver.iter, epoch]).permutation(total)
            for start in range(0, total, size):  # the last batch may be smaller
                part = order[start : start + size]
                yield {name: array[part] for name, array in arrays.items()}


def _arrays(inputs: list[str], data: Any, labels: Any, device: Device) -> Batch | None:
    """Return the items as an array for each input; None for an iterable of batches."""
    if isinstance(data, Mapping) or labels is not None or hasattr(data, "shape"):
        given = data if labels is None else (data, labels)
        arrays = _by_input(inputs, given, device)
        lengths = {name: len(array) if array.shape else None for name, array in arrays.items()}
        if len({*lengths.values()}) > 1 or not all(lengths.values()):
            message = f"got arrays of lengths {lengths}, expected one length above 0"
            raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=lengths)
        return arrays
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        return None
    message = f"got a {type(data).__name__}, expected arrays or an iterable of batches"
    raise ConfigError(message, code=ErrorCode.INVALID, field="data", got=type(data).__name__)


def _by_input(inputs: list[str], batch: Any, device: Device) -> Batch:
    """Return a batch by the names of the inputs, which must be those of the net."""
    if not isinstance(batch, Mapping):
        parts = batch if isinstance(batch, (tuple, list)) else (batch,)
        if len(parts) != len(inputs):
            message = f"got a batch of {len(parts)} arrays, expected {len(inputs)}: {inputs}"
            raise NetError(message, code=ErrorCode.COUNT_MISMATCH, expected=inputs)
        batch = dict(zip(inputs, parts, strict=True))
    if set(batch) != set(inputs):
        message = f"got a batch with {sorted(batch)}, expected the inputs {inputs}"
        raise NetError(message, code=ErrorCode.UNKNOWN, expected=inputs, got=sorted(batch))
    return {name: _array(value, name, device) for name, value in batch.items()}


def _array(value: Any, name: str, device: Device) -> Any:
    """Return a tensor, a list or a table as an array; arrays on the device stay there."""
    if hasattr(value, "detach"):
        value = host_array(value.cpu(), f"input {name!r}", device)
    try:
        return value if is_on(value, device) else host_array(value, f"input {name!r}", device)
    except ValueError as error:  # rows of different lengths
        message = f"got an input {name!r} that is not an array: {error}"
        raise ShapeError(message, code=ErrorCode.INVALID, blob=name) from None
