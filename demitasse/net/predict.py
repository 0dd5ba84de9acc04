"""Arrays through a net, a batch at a time.

Which inputs are cut into batches follows from the lengths of their first axes, and which outputs
are joined from their shapes for two batch sizes. Where neither tells, it is said and not guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from demitasse.blob import Blob
from demitasse.blob.given import host_array, is_on
from demitasse.core.device import Device
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError, ShapeError
from demitasse.plan import Plan

__all__ = ["Shapes", "predict"]

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


class Runnable(Protocol):
    """A net that arrays are run through (``demitasse.net.Net``)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs that are filled."""

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs that are read."""

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """The blobs by name."""

    @property
    def plan(self) -> Plan:
        """How its layers run."""

    device: Device
    """Where it runs."""

    def set_input(self, name: str, array: Any) -> None:
        """Reshape an input blob to an array and fill it."""

    def forward(self) -> float:
        """Run all layers."""


def predict(
    net: Runnable,
    given: dict[str, Any] | Any,
    batch: int | None,
    whole: Collection[str] | None,
    declared: Shapes,
) -> Arrays:
    """Run arrays through a net, at most ``batch`` items at a time, and join the outputs.

    Args:
        net: The net.
        given: Arrays or lists by the names of the inputs, or one where there is one input; the
            items on the first axis.
        batch: The most items of one run; None runs all at once.
        whole: Names of the inputs that go into every batch as they are; None works it out.
        declared: The shapes of the inputs as the net was made.

    Returns:
        The outputs: those with a batch axis joined along it, the others once.

    Raises:
        NetError: Inputs are missing or unknown; it cannot be told which inputs or outputs have a
            batch axis, or an output without one is another in every batch.
    """
    if batch is not None and batch < 1:
        message = f"batch must be at least 1, or None, it is {batch}"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="batch", got=batch)
    inputs = _as_arrays(given, net)
    if batch is None:
        return _run(net, inputs)
    cut = _cut(inputs, declared, whole)
    total = max((inputs[name].shape[0] for name in cut), default=0)
    if total <= batch:
        return _run(net, inputs)
    parts = _parts(inputs, cut, total, batch)
    found = {name: [array] for name, array in _run(net, next(parts)).items()}
    joined = _joined(net, inputs, cut, batch, total % batch)
    for part in parts:
        for name, array in _run(net, part).items():
            if name in joined:
                found[name].append(array)
            else:
                _need_same(name, found[name][0], array)
    return {
        name: np.concatenate(arrays) if name in joined else arrays[0]
        for name, arrays in found.items()
    }


def _as_arrays(given: dict[str, Any] | Any, net: Runnable) -> Arrays:
    """Return what the caller gave as an array for each input."""
    inputs = net.inputs
    if not isinstance(given, dict):
        if len(inputs) != 1:
            message = f"net {net.name!r} has inputs {inputs}; give a dict of arrays"
            raise NetError(message, code=ErrorCode.INVALID, expected=list(inputs))
        given = {inputs[0]: given}
    if set(given) != set(inputs):
        message = f"the inputs of net {net.name!r} are {inputs}, given are {list(given)}"
        raise NetError(message, code=ErrorCode.UNKNOWN, expected=list(inputs), got=list(given))
    try:
        return {
            name: value
            if is_on(value, net.device)
            else host_array(value, f"input {name!r}", net.device)
            for name, value in given.items()
        }
    except ValueError as error:  # rows of different lengths
        message = f"an input of net {net.name!r} is no array: {error}"
        raise ShapeError(message, code=ErrorCode.INVALID) from None


def _run(net: Runnable, inputs: Arrays) -> Arrays:
    """Fill inputs, run forward and return copies of the outputs, all as numpy arrays."""
    for name, array in inputs.items():
        net.set_input(name, array)
    net.forward()
    return {name: net.blobs[name].cpu_data().copy() for name in net.outputs}


def _output_shapes(net: Runnable, inputs: Shapes) -> Shapes:
    """Return the shapes that the outputs have for shapes of inputs, computing nothing.

    The inputs keep these shapes. Where a size depends on values, it is that of the last pass.
    """
    for name, shape in inputs.items():
        net.blobs[name].reshape(shape)
    with net.device.backend.enter():
        net.plan.reshape_layers()
    return {name: net.blobs[name].shape for name in net.outputs}


def _cut(
    inputs: Arrays, declared: Mapping[str, tuple[int, ...]], whole: Collection[str] | None
) -> list[str]:
    """Return the names of the inputs that are cut into batches: the longest ones.

    The others must be of the very shape that the net declares for them, as ``im_info`` is.
    """
    unknown = sorted(set(whole or ()) - set(inputs))
    if unknown:
        message = f"whole= names {', '.join(unknown)}; the inputs are {', '.join(inputs)}"
        raise NetError(message, code=ErrorCode.UNKNOWN, field="whole", got=unknown)
    free = [name for name, a in inputs.items() if a.ndim and name not in (whole or ())]
    longest = max((inputs[name].shape[0] for name in free), default=0)
    cut = [name for name in free if inputs[name].shape[0] == longest]
    odd, by_chance = [name for name in free if name not in cut], False
    if whole is None:
        odd = [name for name in odd if inputs[name].shape != declared[name]]
        # of one length by chance, as three images and three values that describe each of them
        by_chance = len({declared[name][0] for name in cut if declared[name]}) > 1
    if odd or by_chance:
        given = ", ".join(f"{name!r} {array.shape}" for name, array in inputs.items())
        known = ", ".join(f"{name!r} {declared[name]}" for name in inputs)
        message = (
            f"it cannot be told which inputs have an item for each of {longest}: given are "
            f"{given}, the net declares {known}; name those that go into every batch as they are "
            "in whole=[...]"
        )
        raise NetError(message, code=ErrorCode.CONFLICT, field="whole")
    return cut


def _parts(inputs: Arrays, cut: Collection[str], total: int, batch: int) -> Iterator[Arrays]:
    for start in range(0, total, batch):
        end = start + batch
        some = slice(start, min(end, total))
        yield {name: a[some, ...] if name in cut else a for name, a in inputs.items()}


def _joined(net: Runnable, inputs: Arrays, cut: Collection[str], batch: int, rest: int) -> set[str]:
    """Return the names of the outputs whose first axis grows with the number of items.

    Args:
        net: The net, whose inputs get the shapes of ``batch`` items in the end.
        inputs: All of the inputs.
        cut: The names of those that have a batch axis.
        batch: How many items a batch has.
        rest: How many the last one has; 0 if as many.
    """
    other = rest or batch - 1 or 2

    def shapes(items: int) -> Shapes:
        sizes = {n: (items, *a.shape[1:]) if n in cut else a.shape for n, a in inputs.items()}
        return _output_shapes(net, sizes)

    try:
        few, many = shapes(other), shapes(batch)
    except DemitasseError as error:
        error.at(f"a batch of {other} after one of {batch}")
        raise
    joined = set()
    for name, shape in many.items():
        rows, others = shape[:1], few[name][:1]
        if rows == others:
            continue
        if rows[0] * other != others[0] * batch:
            message = (
                f"output {name!r} is {few[name]} for {other} items and {shape} for {batch}, so it "
                "cannot be joined; predict without batch=, or batch by batch"
            )
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, blob=name)
        joined.add(name)
    return joined


def _need_same(name: str, first: np.ndarray, array: np.ndarray) -> None:
    """Refuse an output without a batch axis that one batch changes."""
    if not np.array_equal(first, array, equal_nan=True):
        message = (
            f"output {name!r} {array.shape} has no batch axis, and its values are others in every "
            "batch, so it cannot be joined; predict without batch=, or batch by batch"
        )
        raise NetError(message, code=ErrorCode.CONFLICT, blob=name)
