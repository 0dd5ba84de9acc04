"""Run one net on several devices and say where their results differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from demitasse.core.device import Device
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.net import Net
from demitasse.plan.report import report
from demitasse.testing.differences import KINDS, Difference, gap
from demitasse.testing.tolerances import tolerance

__all__ = ["Comparison", "Found", "Row", "compare", "run_net"]


SUMMED = {"Convolution", "Deconvolution", "InnerProduct"}
"""Types of layers whose second parameter is a bias."""


class Found(NamedTuple):
    """An array that a layer has computed."""

    layer: str
    type: str
    what: str
    array: np.ndarray
    read: tuple[str, ...] = ()  # names of what it was computed from
    wrote: tuple[str, ...] = ()  # names of what it is
    floor: float = 0.0  # values below it are what rounding leaves of larger ones


@dataclass(frozen=True)
class Row:
    """One layer on all devices: for each the worst of its data, gradients and parameters.

    Attributes:
        layer: Name of the layer.
        type: Its type.
        data: For each device the largest difference of the layer's tops, or None.
        gradients: The same of what its backward has computed.
        parameters: The same of its parameters.
    """

    layer: str
    type: str
    data: Mapping[str, Difference | None]
    gradients: Mapping[str, Difference | None]
    parameters: Mapping[str, Difference | None]

    def of(self, kind: str) -> Mapping[str, Difference | None]:
        """Return what is known of one of ``differences.KINDS``."""
        return dict(zip(KINDS, (self.data, self.gradients, self.parameters), strict=True))[kind]

    @property
    def worst(self) -> float:
        """The largest relative difference of the layer."""
        found = [one for kind in KINDS for one in self.of(kind).values()]
        return max((one.relative for one in found if one is not None), default=0.0)


@dataclass
class Comparison:
    """What ``compare`` found.

    Attributes:
        reference: The device the others are held against.
        devices: The others.
        differences: One for each array and device, in the order of computation.
        together: The same of the net's outputs and parameters, where layers run as one as they do
            without being looked at.
        code: For each device, what runs each layer forward: "portable", "numpy", "jit:avx2", ...
    """

    reference: str
    devices: list[str]
    differences: list[Difference] = field(default_factory=list)
    together: list[Difference] = field(default_factory=list)
    code: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def all(self) -> list[Difference]:
        """All differences, layer by layer and together."""
        return [*self.differences, *self.together]

    @property
    def worst(self) -> Difference | None:
        """The largest relative difference."""
        return max(self.all, key=lambda d: d.relative, default=None)

    def first_divergence(self, rtol: float) -> Difference | None:
        """Return the first array, as computed, that is off by more than ``rtol``."""
        return next((d for d in self.all if not d.relative <= rtol), None)

    def need_agreement(self, what: str, dtype: str) -> None:
        """Refuse what computes something else than it should.

        Args:
            what: What parts from what, for the message.
            dtype: Numbers that it computes in.

        Raises:
            NetError: It does; names the first layer, and the worst.
        """
        for one in self.all:
            allowed = tolerance(dtype, one.type)
            if not one.relative <= allowed:
                message = (
                    f"{what} (allowed {allowed:.1e}) at {self.explain(one)}; worst: {self.worst}"
                )
                raise NetError(message, code=ErrorCode.INCOMPATIBLE, layer=one.layer)

    def rows(self) -> list[Row]:
        """Return a row for each layer, in the order of the net."""
        found: dict[tuple[str, str], list[Difference]] = {}
        for one in self.differences:
            found.setdefault((one.layer, one.type), []).append(one)
        return [
            Row(name, kind, *(self._worst_of(some, what) for what in KINDS))
            for (name, kind), some in found.items()
        ]

    def _worst_of(
        self, differences: Sequence[Difference], kind: str
    ) -> dict[str, Difference | None]:
        return {
            device: max(
                (d for d in differences if d.device == device and d.kind == kind),
                key=lambda d: d.relative,
                default=None,
            )
            for device in self.devices
        }

    def explain(self, difference: Difference) -> str:
        """Say what is known of a difference: the values, what had run, whether its inputs agree."""
        found, lines = difference.gap, [f"{difference}"]
        if not np.isnan(found.ulps):
            lines.append(
                f"the value at {list(found.index)} is {found.got:.9g} there and "
                f"{found.expected:.9g} on {self.reference}, {found.ulps:,.0f} ulp apart"
            )
        ran = [
            f"{self.code[device].get(difference.layer, 'other code')} on {device}"
            for device in (difference.device, self.reference)
            if device in self.code
        ]
        if ran:
            lines.append(f"the layer ran as {', as '.join(ran)}")
        if difference.inputs is not None:
            lines.append(f"what it read was off by {difference.inputs:.2e} at most")
        if found.first and found.first != found.index:
            lines.append(f"the first value that differs is at {list(found.first)}")
        return "; ".join(lines)

    def raise_if(self, rtol: float = 1e-4) -> None:
        """Raise when some array is off by more than ``rtol`` of its scale.

        Raises:
            NetError: Names the first layer where that is so, and the worst.
        """
        first = self.first_divergence(rtol)
        if first is not None:
            message = (
                f"{first.device} parts from {self.reference} (allowed {rtol:.1e}) at "
                f"{self.explain(first)}; worst: {self.worst}"
            )
            raise NetError(
                message, code=ErrorCode.INCOMPATIBLE, layer=first.layer, device=first.device
            )

    def __str__(self) -> str:
        lines = [f"{', '.join(self.devices)} against {self.reference}:"]
        return "\n".join([*lines, *(f"  {difference}" for difference in self.all)])


def compare(
    net: Net,
    devices: Sequence[str | Device],
    inputs: dict[str, Any] | None = None,
    *,
    backward: bool | None = None,
) -> Comparison:
    """Run a net on several devices from the same parameters, inputs and random numbers.

    The net itself is left alone: every device gets its own copy. It runs twice: layer by layer, and
    as it runs without being looked at, where several layers may be computed as one.

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
        raise NetError(message, code=ErrorCode.COUNT_MISMATCH, field="devices", got=len(devices))
    given = {name: net.blobs[name].cpu_data() for name in net.inputs} | dict(inputs or {})
    wanted = any(net.structure.blob_loss_weights) if backward is None else backward
    first, *others = devices
    result = Comparison(str(first), [str(device) for device in others])
    floors: dict[str, float] = {}
    for look, differences in ((True, result.differences), (False, result.together)):
        expected = run_net(
            net, first, given, backward=wanted, look=look, code=result.code, floors=floors
        )
        columns = [
            _differences(
                run_net(net, device, given, backward=wanted, look=look, code=result.code),
                expected,
                str(device),
            )
            for device in others
        ]
        differences += [one for same in zip(*columns, strict=True) for one in same]
    return result


def _differences(
    found: Sequence[Found], expected: Sequence[Found], device: str
) -> list[Difference]:
    """Hold what one device has computed against what the reference has."""
    last: dict[str, float] = {}  # blob -> how far its newest value is off
    result = []
    for one, other in zip(found, expected, strict=True):
        apart = gap(one.array, other.array, other.floor)
        read = [last[name] for name in one.read if name in last]
        result.append(
            Difference(one.layer, one.type, one.what, device, apart, max(read) if read else None)
        )
        for name in one.wrote:
            last[name] = apart.relative
    return result


def run_net(
    net: Net,
    device: str | Device,
    inputs: Mapping[str, Any],
    *,
    backward: bool,
    look: bool,
    code: dict[str, dict[str, str]],
    floors: dict[str, float] | None = None,
) -> list[Found]:
    """Run a copy of a net on a device; return what it has computed.

    Args:
        net: The net.
        device: Where to run.
        inputs: An array for each net input.
        backward: Whether to run backward, too.
        look: Whether to look at every layer, one after the other, and not at the outputs alone.
        code: Gets, for the device, what ran each layer.
        floors: Gets, when it looks, for layers with a bias below which values its gradient is
            rounding error; these are then noted with the gradients.
    """
    found: list[Found] = []
    floors = {} if floors is None else floors
    with net.clone(device) as copy:
        if look:
            copy.after_forward.append(lambda index: found.extend(_tops(copy, index)))
            copy.after_backward.append(lambda index: found.extend(_gradients(copy, index)))
            copy.after_backward.append(lambda index: floors.update(_floor(copy, index)))
        try:
            for name, array in inputs.items():
                copy.set_input(name, array)
            copy.forward()
            if not look:
                found += _outputs(copy)
            code[str(device)] = {
                layer.name: layer.code for layer in report(copy.plan) if layer.code
            }
            if backward:
                _give_gradients(net, copy)
                copy.clear_param_diffs()
                copy.backward()
        except DemitasseError as error:
            error.at(f"on {device}")
            raise
        if backward:
            found += _parameter_gradients(copy, floors, "" if look else ", layers run as one")
    return found


def _tops(net: Net, index: int) -> Iterator[Found]:
    """Yield the tops of a layer that has run."""
    layer, names = net.layers[index], net.blob_names
    read = tuple(names[i] for i in net.structure.bottom_ids(index))
    for top in net.structure.top_ids(index):
        data = net.structure.blob_list[top].cpu_data().copy()
        what = f"top {names[top]!r}"
        yield Found(layer.name, layer.type, what, data, read, (names[top],))


def _gradients(net: Net, index: int) -> Iterator[Found]:
    """Yield the gradients of a layer's bottoms, where it has computed any."""
    layer, structure, names = net.layers[index], net.structure, net.blob_names
    if not structure.layer_need_backward[index]:
        return
    read = tuple(f"gradient of {names[i]}" for i in structure.top_ids(index))
    needs = structure.bottom_need_backward[index]
    for bottom, need in zip(structure.bottom_ids(index), needs, strict=True):
        if need:
            diff = structure.blob_list[bottom].cpu_diff().copy()
            what = f"gradient of bottom {names[bottom]!r}"
            wrote = (f"gradient of {names[bottom]}",)
            yield Found(layer.name, layer.type, what, diff, read, wrote)


def _outputs(net: Net) -> Iterator[Found]:
    """Yield the outputs of a net, by the layers that write them."""
    makers = {
        net.blob_names[top]: layer
        for index, layer in enumerate(net.layers)
        for top in net.structure.top_ids(index)
    }
    for name in net.outputs:
        layer = makers[name]
        what = f"output {name!r}, layers run as one"
        yield Found(layer.name, layer.type, what, net.blobs[name].cpu_data().copy())


def _floor(net: Net, index: int) -> dict[str, float]:
    """Return, for a layer whose bias's gradient is a sum, a hundredth of what was added up.

    A bias before a BatchNorm has no effect, so its gradient is 0 but for rounding: terms of any
    size that cancel. Where two digits or more are lost that way, the rest is compared less closely.
    """
    layer, structure = net.layers[index], net.structure
    if layer.type not in SUMMED or len(layer.blobs) < 2 or not structure.layer_need_backward[index]:
        return {}
    tops = [structure.blob_list[top].cpu_diff() for top in structure.top_ids(index)]
    added = sum(float(np.sum(np.abs(diff), dtype=np.float64)) for diff in tops)
    return {layer.name: added / layer.blobs[1].count / 100}


def _parameter_gradients(net: Net, floors: Mapping[str, float], how: str) -> Iterator[Found]:
    """Yield the gradients of all parameters that learn."""
    for layer in net.layers:
        for index, blob in enumerate(layer.blobs):
            if layer.param_propagate_down(index):
                what = f"gradient of parameter {index}{how}"
                floor = floors.get(layer.name, 0.0) if index == 1 else 0.0
                diff = blob.cpu_diff().copy()
                yield Found(layer.name, layer.type, what, diff, floor=floor)


def _give_gradients(net: Net, copy: Net) -> None:
    """Set the gradients of outputs that are no loss to what the net's own blobs hold."""
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    for name in net.outputs:
        if not weights[name] and net.blobs[name].shape == copy.blobs[name].shape:
            copy.blobs[name].mutable_cpu_diff()[...] = net.blobs[name].cpu_diff()
