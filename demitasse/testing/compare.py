"""Run one net on several devices and say where their results differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demitasse.errors import DemitasseError, NetError
from demitasse.net import Net

__all__ = ["Comparison", "Difference", "compare", "distance"]

FLOOR = 1e-6  # arrays of smaller values are rounding errors


@dataclass(frozen=True)
class Difference:
    """How far one array of one layer is from the first device's.

    Attributes:
        layer: Name of the layer.
        type: Its type.
        what: E.g. "top 'ip1'", "gradient of bottom 'pool2'", "gradient of parameter 0".
        device: The device compared.
        absolute: Largest absolute difference; inf where one side is not finite.
        relative: The same, over the largest absolute value of the first device's array.
    """

    layer: str
    type: str
    what: str
    device: str
    absolute: float
    relative: float

    def __str__(self) -> str:
        return (
            f"layer {self.layer!r} ({self.type}), {self.what}: "
            f"{self.relative:.2e} relative, {self.absolute:.2e} absolute on {self.device}"
        )


@dataclass
class Comparison:
    """What ``compare`` found.

    Attributes:
        reference: The device the others are held against.
        devices: The others.
        differences: One for each array and device, in the order of computation.
    """

    reference: str
    devices: list[str]
    differences: list[Difference] = field(default_factory=list)

    @property
    def worst(self) -> Difference | None:
        """The largest relative difference."""
        return max(self.differences, key=lambda d: d.relative, default=None)

    def first_divergence(self, rtol: float) -> Difference | None:
        """Return the first array, as computed, that is off by more than ``rtol``."""
        return next((d for d in self.differences if not d.relative <= rtol), None)

    def raise_if(self, rtol: float = 1e-4) -> None:
        """Raise when some array is off by more than ``rtol`` of its scale.

        Raises:
            NetError: Names the first layer where that is so, and the worst.
        """
        first = self.first_divergence(rtol)
        if first is not None:
            message = (
                f"{first.device} parts from {self.reference} (allowed {rtol:.1e}) at {first}; "
                f"worst: {self.worst}"
            )
            raise NetError(message)

    def __str__(self) -> str:
        lines = [f"{', '.join(self.devices)} against {self.reference}:"]
        return "\n".join([*lines, *(f"  {difference}" for difference in self.differences)])


def compare(
    net: Net,
    devices: Sequence[str],
    inputs: dict[str, Any] | None = None,
    *,
    backward: bool | None = None,
) -> Comparison:
    """Run a net on several devices from the same parameters, inputs and random numbers.

    The net itself is left alone: every device gets its own copy.

    Args:
        net: The net.
        devices: At least two; the first is the reference.
        inputs: An array for each net input; by default what its blobs hold.
        backward: Whether gradients are compared too; by default, where the net has a loss.
            Outputs that are no loss begin with the gradient the net's own blobs hold.

    Returns:
        The differences of every top after its layer has run, then of every bottom's gradient from
        the end, then of every parameter's gradient.

    Raises:
        NetError: Fewer than two devices.
        DeviceError: A device is not there.
    """
    if len(devices) < 2:
        message = f"compare needs two devices or more, not {list(devices)}"
        raise NetError(message)
    given = {name: net.blobs[name].cpu_data() for name in net.inputs} | dict(inputs or {})
    wanted = any(net.structure.blob_loss_weights) if backward is None else backward
    runs = [list(_run(net, device, given, wanted)) for device in devices]
    result = Comparison(str(devices[0]), [str(d) for d in devices[1:]])
    for steps in zip(*runs, strict=True):
        (layer, kind, what, expected), *others = steps
        for device, (*_, actual) in zip(devices[1:], others, strict=True):
            absolute, relative = distance(actual, expected)
            result.differences.append(
                Difference(layer, kind, what, str(device), absolute, relative)
            )
    return result


def _run(
    net: Net, device: str, inputs: dict[str, Any], backward: bool
) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Run a copy of a net on a device; yield what each layer has computed."""
    found: list[tuple[str, str, str, np.ndarray]] = []
    with net.clone(device) as copy:
        names = copy.blob_names

        def after_forward(index: int) -> None:
            layer = copy.layers[index]
            for top in copy.structure.top_ids(index):
                data = copy.structure.blob_list[top].cpu_data().copy()
                found.append((layer.name, layer.type, f"top {names[top]!r}", data))

        def after_backward(index: int) -> None:
            layer = copy.layers[index]
            if not copy.structure.layer_need_backward[index]:
                return
            for bottom, need in zip(
                copy.structure.bottom_ids(index),
                copy.structure.bottom_need_backward[index],
                strict=True,
            ):
                if need:
                    diff = copy.structure.blob_list[bottom].cpu_diff().copy()
                    what = f"gradient of bottom {names[bottom]!r}"
                    found.append((layer.name, layer.type, what, diff))

        copy.after_forward.append(after_forward)
        copy.after_backward.append(after_backward)
        try:
            for name, array in inputs.items():
                copy.set_input(name, array)
            copy.forward()
            if backward:
                _give_gradients(net, copy)
                copy.clear_param_diffs()
                copy.backward()
        except DemitasseError as error:
            error.at(f"on {device}")
            raise
        yield from found
        if backward:
            for layer in copy.layers:
                for index, blob in enumerate(layer.blobs):
                    if layer.param_propagate_down(index):
                        what = f"gradient of parameter {index}"
                        yield layer.name, layer.type, what, blob.cpu_diff().copy()


def _give_gradients(net: Net, copy: Net) -> None:
    """Set the gradients of outputs that are no loss to what the net's own blobs hold."""
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    for name in net.outputs:
        if not weights[name] and net.blobs[name].shape == copy.blobs[name].shape:
            copy.blobs[name].mutable_cpu_diff()[...] = net.blobs[name].cpu_diff()


def distance(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Return the largest difference, and that over the largest expected value.

    Both are infinite where the shapes differ or one side alone is not finite.
    """
    if actual.shape != expected.shape:
        return float("inf"), float("inf")
    if not expected.size:
        return 0.0, 0.0
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.isfinite(a[~same]).all() or not np.isfinite(b[~same]).all():
        return float("inf"), float("inf")
    gap = np.subtract(a, b, where=~same, out=np.zeros_like(a))
    absolute = float(np.max(np.abs(gap)))
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    return absolute, absolute / max(scale, FLOOR)
