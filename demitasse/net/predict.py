"""Prediction: arrays through a net, a batch at a time.

The lengths of the first axes decide which inputs are split into batches. The shapes for two batch
sizes decide which outputs are concatenated. Ambiguous cases raise an error.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.blob.blob import host_array, is_on
from demitasse.errors import DemitasseError, ErrorCode, NetError, ShapeError
from demitasse.layers.checks import at_least

if TYPE_CHECKING:
    from demitasse.net.net import Net

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


def predict(
    net: Net,
    given: dict[str, Any] | Any,
    batch_size: int | None,
    unbatched: Collection[str] | None,
    declared: Shapes,
    outputs: Collection[str] | None = None,
) -> Arrays:
    """Run arrays through a net, ``batch_size`` items at a time, and concatenate the outputs.

    See ``Net.predict``; ``declared`` are the shapes of the inputs when the net was made.
    """
    if batch_size is not None:
        at_least(1, "batch_size", batch_size)
    names = net.outputs
    if outputs is not None:
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        for name in names:
            net.blob_by_name(name)
    inputs = _as_arrays(given, net)
    if all(array.ndim == len(declared[name]) - 1 for name, array in inputs.items()) and inputs:
        one = _run(net, {name: array[None] for name, array in inputs.items()}, names)
        return {name: a[0] if a.shape[:1] == (1,) else a for name, a in one.items()}
    if batch_size is None:
        return _run(net, inputs, names)
    cut = _cut(inputs, declared, unbatched)
    total = max((inputs[name].shape[0] for name in cut), default=0)
    if total <= batch_size:
        return _run(net, inputs, names)
    slices = (slice(i, min(i + batch_size, total)) for i in range(0, total, batch_size))
    parts = (
        {name: a[some, ...] if name in cut else a for name, a in inputs.items()} for some in slices
    )
    found = {name: [array] for name, array in _run(net, next(parts), names).items()}
    concatenated = _concatenated(net, inputs, names, cut, batch_size, total % batch_size)
    for part in parts:
        for name, array in _run(net, part, names).items():
            if name in concatenated:
                found[name].append(array)
            elif not np.array_equal(found[name][0], array, equal_nan=True):
                message = (
                    f"output {name!r} {array.shape} has no batch axis, and its values change from "
                    "batch to batch; predict without batch_size=, or batch by batch"
                )
                raise NetError(message, code=ErrorCode.CONFLICT, blob=name)
    return {
        name: np.concatenate(arrays) if name in concatenated else arrays[0]
        for name, arrays in found.items()
    }


def _as_arrays(given: dict[str, Any] | Any, net: Net) -> Arrays:
    """Return the caller's inputs as an array for each input."""
    inputs = net.inputs
    if not isinstance(given, dict):
        if len(inputs) != 1:
            message = f"net {net.name!r} has inputs {inputs}, got one array; give a dict of arrays"
            raise NetError(message, code=ErrorCode.INVALID, expected=list(inputs))
        given = {inputs[0]: given}
    if set(given) != set(inputs):
        message = f"net {net.name!r} has inputs {inputs}, got {list(given)}"
        raise NetError(message, code=ErrorCode.UNKNOWN, expected=list(inputs), got=list(given))
    for name, value in given.items():
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(first, (str, os.PathLike)):
            message = (
                f"input {name!r} of net {net.name!r} must be an array, got the file {first!s}; "
                "demitasse.load_model and the command demitasse run read images"
            )
            raise ShapeError(message, code=ErrorCode.INVALID, blob=name)
    try:
        arrays = dict(given)
        for name, value in given.items():
            if not is_on(value, net.device):
                arrays[name] = host_array(value, f"input {name!r}", net.device)
        return arrays
    except ValueError as error:  # rows of different lengths
        message = f"got an input of net {net.name!r} that is not an array: {error}"
        raise ShapeError(message, code=ErrorCode.INVALID) from None


def _run(net: Net, inputs: Arrays, names: Collection[str]) -> Arrays:
    """Fill inputs, run forward and return copies of blobs, all as numpy arrays."""
    for name, array in inputs.items():
        net.set_input(name, array)
    net.forward()
    return {name: net.blobs[name].cpu_data().copy() for name in names}


def _cut(
    inputs: Arrays, declared: Mapping[str, tuple[int, ...]], unbatched: Collection[str] | None
) -> list[str]:
    """Return the names of the inputs that are split into batches: the longest ones.

    Each other input must have the shape that the net declares for it, as ``im_info`` has.
    """
    if unknown := sorted(set(unbatched or ()) - set(inputs)):
        message = f"got unbatched={unknown}, expected names of inputs: {', '.join(inputs)}"
        raise NetError(message, code=ErrorCode.UNKNOWN, field="unbatched", got=unknown)
    free = [name for name, a in inputs.items() if a.ndim and name not in (unbatched or ())]
    longest = max((inputs[name].shape[0] for name in free), default=0)
    cut = [name for name in free if inputs[name].shape[0] == longest]
    odd, by_chance = [name for name in free if name not in cut], False
    if unbatched is None:
        odd = [name for name in odd if inputs[name].shape != declared[name]]
        # equal lengths by chance, as of three images and three values that describe each image
        by_chance = len({declared[name][0] for name in cut if declared[name]}) > 1
    if odd or by_chance:
        given = ", ".join(f"{name!r} {array.shape}" for name, array in inputs.items())
        known = ", ".join(f"{name!r} {declared[name]}" for name in inputs)
        message = (
            f"ambiguous which inputs have a batch axis of {longest}: got {given}, the net declares "
            f"{known}; name the inputs that are not split into batches in unbatched=[...]"
        )
        raise NetError(message, code=ErrorCode.CONFLICT, field="unbatched")
    return cut


def _concatenated(
    net: Net, inputs: Arrays, names: Collection[str], cut: Collection[str], batch: int, rest: int
) -> set[str]:
    """Return the names of the outputs whose first axis grows with the number of items.

    A batch has ``batch`` items, and the last ``rest``; 0 for a full one. ``cut`` names the inputs
    with a batch axis. Inputs end up with the shapes of ``batch`` items.
    """
    other = rest or batch - 1 or 2

    def shapes(items: int) -> Shapes:
        """Return the shapes of outputs; sizes that depend on values are those of the last pass."""
        for name, array in inputs.items():
            net.blobs[name].reshape((items, *array.shape[1:]) if name in cut else array.shape)
        with net.device.backend.enter():
            net.plan.reshape_layers(net.plan.entries)
        return {name: net.blobs[name].shape for name in names}

    try:
        few, many = shapes(other), shapes(batch)
    except DemitasseError as error:
        error.at(f"a batch of {other} after one of {batch}")
        raise
    concatenated = set()
    for name, shape in many.items():
        rows, others = shape[:1], few[name][:1]
        if rows == others:
            continue
        if rows[0] * other != others[0] * batch:
            message = (
                f"output {name!r} is {few[name]} for {other} items and {shape} for {batch}, and "
                "cannot be concatenated; predict without batch_size=, or batch by batch"
            )
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, blob=name)
        concatenated.add(name)
    return concatenated
