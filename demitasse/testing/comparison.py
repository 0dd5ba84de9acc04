"""Comparison of a net on several devices: blobs, gradients, parameters, training steps."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from demitasse.core.config import settings
from demitasse.core.deprecated import deprecated_attribute
from demitasse.core.device import Device
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, SolverParameter
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net
from demitasse.plan.report import report
from demitasse.testing.error_stats import KINDS, Difference, error_stats, tolerance

BIASED = {"Convolution", "Deconvolution", "InnerProduct"}
"""Layer types whose second parameter is a bias."""


class LayerArray(NamedTuple):
    """An array that a layer computed."""

    layer: str
    type: str
    what: str
    array: np.ndarray
    read: tuple[str, ...] = ()  # names of the arrays it was computed from
    wrote: tuple[str, ...] = ()  # its names
    floor: float = 0.0  # smaller values are rounding errors


@dataclass(frozen=True)
class Row:
    """Largest differences of one layer on each device; None where there is none of a kind.

    The mappings have an entry for each device: of the layer's tops, of the gradients that the layer
    computed, and of its parameters.
    """

    layer: str
    type: str
    data: Mapping[str, Difference | None]
    gradients: Mapping[str, Difference | None]
    parameters: Mapping[str, Difference | None]

    of = deprecated_attribute("Row", "of", "by_kind")

    def by_kind(self, kind: str) -> Mapping[str, Difference | None]:
        """Return the differences of one of ``error_stats.KINDS``, by device."""
        return dict(zip(KINDS, (self.data, self.gradients, self.parameters), strict=True))[kind]

    @property
    def worst(self) -> float:
        """The largest relative error of the layer."""
        found = [one for kind in KINDS for one in self.by_kind(kind).values()]
        return max((one.relative for one in found if one is not None), default=0.0)


@dataclass
class Comparison:
    """Result of ``compare``.

    Attributes:
        reference: The reference device.
        devices: The other devices.
        differences: One for each array and device, in the order of computation, without fusion.
        fused: Differences of outputs and parameters in a run with fused layers.
        code: Device -> layer -> implementation: "portable", "numpy", "jit:avx2", ...
    """

    reference: str
    devices: list[str]
    differences: list[Difference] = field(default_factory=list)
    fused: list[Difference] = field(default_factory=list)
    code: dict[str, dict[str, str]] = field(default_factory=dict)

    together = deprecated_attribute("Comparison", "together", "fused")

    @property
    def all(self) -> list[Difference]:
        """All differences: without fusion, then with fusion."""
        return [*self.differences, *self.fused]

    @property
    def worst(self) -> Difference | None:
        """The largest relative difference."""
        return max(self.all, key=lambda d: d.relative, default=None)

    def first_divergence(self, rtol: float) -> Difference | None:
        """Return the first array, in the order of computation, with an error above ``rtol``."""
        return next((d for d in self.all if not d.relative <= rtol), None)

    def check_agreement(self, what: str, dtype: str) -> None:
        """Raise a NetError if a difference exceeds the tolerance of its layer type.

        ``what`` begins the message, such as "net.onnx disagrees with the net".
        """
        for one in self.all:
            if one.exceeds(dtype):
                raise self._disagreement(what, one, tolerance(dtype, one.type))

    def _disagreement(self, what: str, one: Difference, allowed: float) -> NetError:
        message = f"{what} (tolerance {allowed:.1e}) at {self.explain(one)}; worst: {self.worst}"
        details = {"layer": one.layer, "device": one.device}
        return NetError(message, code=ErrorCode.INCOMPATIBLE, **details)

    def rows(self) -> list[Row]:
        """Return a row for each layer, in the order of the net."""
        found: dict[tuple[str, str], list[Difference]] = {}
        for one in self.differences:
            found.setdefault((one.layer, one.type), []).append(one)

        def worst(some: Sequence[Difference], kind: str, device: str) -> Difference | None:
            own = (one for one in some if one.device == device and one.kind == kind)
            return max(own, key=lambda one: one.relative, default=None)

        return [
            Row(*layer, *({d: worst(some, kind, d) for d in self.devices} for kind in KINDS))
            for layer, some in found.items()
        ]

    def explain(self, difference: Difference) -> str:
        """Return a description: values, implementations, and the error of the layer's inputs."""
        stats, lines = difference.stats, [f"{difference}"]
        if not (np.isnan(stats.got) and np.isnan(stats.expected)):
            apart = "" if np.isnan(stats.ulps) else f", {stats.ulps:,.0f} ulp apart"
            lines.append(
                f"the value at {list(stats.index)} is {stats.got:.9g}, and {stats.expected:.9g} on "
                f"{self.reference}{apart}"
            )
        ran = [
            f"{self.code[device].get(difference.layer, 'other code')} on {device}"
            for device in (difference.device, self.reference)
            if device in self.code
        ]
        if ran:
            lines.append(f"the layer ran as {', as '.join(ran)}")
        if difference.inputs is not None:
            lines.append(f"the largest error of its inputs is {difference.inputs:.2e}")
        if stats.first and stats.first != stats.index:
            lines.append(f"the first different value is at {list(stats.first)}")
        return "; ".join(lines)

    def raise_if(self, rtol: float = 1e-4) -> None:
        """Raise a NetError if the relative error of an array exceeds ``rtol``; name the first."""
        first = self.first_divergence(rtol)
        if first is not None:
            what = f"{first.device} disagrees with {self.reference}"
            raise self._disagreement(what, first, rtol)

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

    Each device runs a copy; the net itself does not change. Each copy runs twice: layer by layer,
    and with fused layers.

    Args:
        net: The net.
        devices: At least two; the first is the reference.
        inputs: An array for each net input; None for the net's present inputs.
        backward: Compare gradients, too; None for nets with a loss that run backward. Outputs that
            are no loss start with the gradient in the net's own blobs.

    Returns:
        Differences of every top in forward order, then of every bottom's gradient in backward
        order, then of every parameter's gradient.

    Raises:
        NetError: ``net`` is no Net, or ``devices`` has fewer than two elements.
        DeviceError: A device is not available.
    """
    if not isinstance(net, Net):
        message = f"got {type(net).__name__} {net!r:.200}, expected a net: Net(file, 'TEST')"
        raise NetError(message, code=ErrorCode.INVALID, field="net", got=type(net).__name__)
    _check_count(devices)
    given = {name: net.blobs[name].cpu_data() for name in net.inputs} | dict(inputs or {})
    able = net.storage == "float" or net.phase == "TRAIN"  # others only run forward
    wanted = able and any(net.structure.blob_loss_weights) if backward is None else backward
    first, *others = devices
    result = Comparison(str(first), [str(device) for device in others])
    floors: dict[str, float] = {}
    for by_layer, differences in ((True, result.differences), (False, result.fused)):
        options: Any = {"backward": wanted, "by_layer": by_layer, "code": result.code}
        expected = run_net(net, first, given, floors=floors, **options)
        columns = [
            _differences(run_net(net, device, given, **options), expected, str(device))
            for device in others
        ]
        differences += [one for same in zip(*columns, strict=True) for one in same]
    return result


def _check_count(devices: Sequence[str | Device]) -> None:
    if isinstance(devices, str) or len(devices) < 2:
        message = f"got devices {devices!r}, expected a list of two or more"
        raise NetError(message, code=ErrorCode.COUNT_MISMATCH, field="devices", got=len(devices))


def precision(net: Net) -> str:
    """Return what a net's tolerance depends on: its storage in 16 bits, or its element type."""
    return net.dtype if net.storage == "float" else net.storage


def _exact_float32() -> AbstractContextManager[None]:
    """Round nothing to TF32 on GPUs, unless the setting ``tf32`` is set."""
    if settings.where("tf32") == "default":
        return settings.override(tf32="off")
    return nullcontext()


def _differences(
    found: Sequence[LayerArray], expected: Sequence[LayerArray], device: str
) -> list[Difference]:
    """Return the differences of one device's arrays from the reference's."""
    errors: dict[str, float] = {}  # blob -> relative error of its present value
    result = []
    for one, other in zip(found, expected, strict=True):
        stats = error_stats(one.array, other.array, other.floor)
        read = [errors[name] for name in one.read if name in errors]
        inputs = max(read, default=None)
        result.append(Difference(one.layer, one.type, one.what, device, stats, inputs))
        errors |= dict.fromkeys(one.wrote, stats.relative)
    return result


def run_net(
    net: Net,
    device: str | Device,
    inputs: Mapping[str, Any],
    *,
    backward: bool,
    by_layer: bool,
    code: dict[str, dict[str, str]],
    floors: dict[str, float] | None = None,
) -> list[LayerArray]:
    """Run a copy of a net on a device; return the arrays that it computed.

    With ``by_layer`` layers run without fusion, and the arrays of every layer are returned; else
    those of outputs alone. Two dictionaries are updated: ``code``, device -> layer ->
    implementation, and with ``by_layer`` ``floors``, layer with a bias -> largest rounding error of
    the bias gradient. These entries become the ``floor`` of the gradients.
    """
    found: list[LayerArray] = []
    floors = {} if floors is None else floors
    with _exact_float32(), net.clone(device) as copy:
        if by_layer:
            copy.after_forward.append(lambda index: found.extend(_tops(copy, index)))
            copy.after_backward.append(lambda index: found.extend(_gradients(copy, index)))
            copy.after_backward.append(lambda index: floors.update(_floor(copy, index)))
        try:
            for name, array in inputs.items():
                copy.set_input(name, array)
            copy.forward()
            if not by_layer:
                found += _outputs(copy)
            ran = report(copy.plan)
            code[str(device)] = {layer.name: layer.code for layer in ran if layer.code}
            if backward:
                _run_backward(net, copy)
        except DemitasseError as error:
            error.at(f"on {device}")
            raise
        if backward:
            found += _parameter_gradients(copy, floors, "" if by_layer else ", fused layers")
    return found


def verify_steps(
    net: Net, devices: Sequence[str | Device], inputs: Mapping[str, Any], *, backward: bool
) -> list[str]:
    """Compare every Step on some devices with portable code; see ``Net(verify=True)``.

    For each device with a wrong Step, a message on the first one is returned.
    """
    found = []
    for device in devices:
        with _exact_float32(), net.clone(device) as copy:
            copy.verify = True
            for name, array in inputs.items():
                copy.set_input(name, array)
            try:
                copy.forward()
                if backward:
                    _run_backward(net, copy)
            except NetError as error:
                if error.code != ErrorCode.FAILED or "step" not in error.details:
                    raise
                found.append(f"on {device}: {error}")
    return found


def _tops(net: Net, index: int) -> Iterator[LayerArray]:
    """Yield the tops of a layer after its forward."""
    at, layer = net.plan.entries[index].binding, net.layers[index]
    read = tuple(blob.name for blob in at.bottom)
    for blob in at.top:
        data, what = blob.cpu_data().copy(), f"top {blob.name!r}"
        yield LayerArray(layer.name, layer.type, what, data, read, (blob.name,))


def _gradients(net: Net, index: int) -> Iterator[LayerArray]:
    """Yield the gradients that a layer computed for its bottoms."""
    at, layer = net.plan.entries[index].binding, net.layers[index]
    read = tuple(f"gradient of {blob.name}" for blob in at.top)
    for blob, wanted in zip(at.bottom, at.propagate_down, strict=True):
        if at.backward and wanted:
            diff, what = blob.cpu_diff().copy(), f"gradient of bottom {blob.name!r}"
            wrote = (f"gradient of {blob.name}",)
            yield LayerArray(layer.name, layer.type, what, diff, read, wrote)


def _outputs(net: Net) -> Iterator[LayerArray]:
    """Yield the outputs of a net with the layers that write them."""
    bindings = [entry.binding for entry in net.plan.entries]
    makers = {blob.name: at.layer for at in bindings for blob in at.top}
    for name in net.outputs:
        layer, data = makers[name], net.blobs[name].cpu_data().copy()
        what = f"output {name!r}, fused layers"
        yield LayerArray(layer.name, layer.type, what, data, wrote=(name,))


def _floor(net: Net, index: int) -> dict[str, float]:
    """Return the floor of a bias gradient: 1 % of the sum of the absolute values of its terms.

    The gradient of a bias before a BatchNorm is 0 except for rounding errors, because its terms
    cancel. The floor loosens the comparison where cancellation loses two digits or more.
    """
    at, layer = net.plan.entries[index].binding, net.layers[index]
    if layer.type not in BIASED or len(layer.blobs) < 2 or not at.backward:
        return {}
    added = sum(float(np.sum(np.abs(b.cpu_diff()), dtype=np.float64)) for b in at.top)
    return {layer.name: added / layer.blobs[1].count / 100}


def _parameter_gradients(net: Net, floors: Mapping[str, float], how: str) -> Iterator[LayerArray]:
    """Yield the gradients of all learnable parameters."""
    for layer in net.layers:
        for index, blob in enumerate(layer.blobs):
            if layer.param_propagate_down(index):
                what = f"gradient of parameter {index}{how}"
                floor = floors.get(layer.name, 0.0) if index == 1 else 0.0
                diff = blob.cpu_diff().copy()
                yield LayerArray(layer.name, layer.type, what, diff, floor=floor)


def _run_backward(net: Net, copy: Net) -> None:
    """Run a copy backward; gradients of outputs that are no loss are those in the net's blobs."""
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    for name in net.outputs:
        if not weights[name] and net.blobs[name].shape == copy.blobs[name].shape:
            copy.blobs[name].mutable_cpu_diff()[...] = net.blobs[name].cpu_diff()
    copy.clear_param_diffs()
    copy.backward(-1)


# -- random inputs -----------------------------------------------------------------------------


def random_inputs(net: Net, seed: int) -> dict[str, np.ndarray]:
    """Return a random array for each net input.

    Images and features get normal noise. Inputs that a layer reads as labels, indices or marks, and
    inputs of one value for each item, are 0; selectors of Filter are 1, ground-truth boxes -1
    (no object).
    """
    random = np.random.default_rng(seed)
    kinds = _value_kinds(net)
    arrays = {}
    for name in net.inputs:
        shape = net.blobs[name].shape
        if not kinds[name] and len(shape) > 1 and np.prod(shape[1:]) > 1:
            arrays[name] = random.standard_normal(shape, np.float32)
        else:
            value = 1 if "selector" in kinds[name] else -1 if "objects" in kinds[name] else 0
            arrays[name] = np.full(shape, value, np.float32)
    return arrays


def _value_kinds(net: Net) -> dict[str, set[str]]:
    """Return the kinds of values (labels, indices, ...) that layers read from each blob."""
    kinds: dict[str, set[str]] = {name: set() for name in net.blob_names}
    for index, layer in reversed(list(enumerate(net.layers))):
        facts = layer_metadata(layer.type)
        bottoms = [net.blob_names[i] for i in net.structure.bottom_ids(index)]
        for name, kind in zip(bottoms, facts.kinds_of_bottoms(len(bottoms)), strict=True):
            kinds[name] |= {kind} if kind else set()
        if facts.shares.is_met(layer.param, layer.phase):  # its tops are other names of the bottom
            for top in net.structure.top_ids(index):
                kinds[bottoms[0]] |= kinds[net.blob_names[top]]
    return kinds


# -- training ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingStep:
    """Difference of one device from the reference after a training step.

    Attributes:
        iteration: Number of steps so far.
        device: The compared device.
        loss: Loss on this device.
        expected: Loss on the reference device.
        worst: Parameter with the largest error, relative to its layer's largest values.
    """

    iteration: int
    device: str
    loss: float
    expected: float
    worst: Difference


def compare_training(
    source: str | os.PathLike[str] | NetParameter | SolverParameter,
    devices: Sequence[str],
    steps: int,
    *,
    prepare: Callable[[Net], None] | None = None,
    seed: int = 0,
    dtype: str = "float32",
    level: int = 0,
    stages: Sequence[str] = (),
) -> list[TrainingStep]:
    """Train on several devices from the same parameters, and compare after each step.

    Rounding errors grow during training, so no tolerance fits every net. A wrong gradient or update
    shows in the first step; rounding errors show later.

    Args:
        source: A net, trained by SGD with learning rate 0.01 and momentum 0.9, or a solver message,
            whose snapshots are not written.
        devices: At least two; the first is the reference.
        steps: Number of steps.
        prepare: Function to call with each device's net before the first step, e.g. to fill inputs.
        seed: Seed of parameters, dropout and data.
        dtype: Element type of the nets.
        level: Level of a net's state; a solver message has its own.
        stages: Stages of a net's state; a solver message has its own.

    Returns:
        For each step, one entry for each device except the reference.

    Raises:
        NetError: ``devices`` has fewer than two elements, or the net has no parameters.
    """
    from demitasse.training import Solver

    _check_count(devices)
    names = [str(device) for device in devices]
    with ExitStack() as stack:
        stack.enter_context(_exact_float32())
        param = _solver(source, level, stages)
        options: dict[str, Any] = {"seed": seed, "dtype": dtype}
        solvers = [stack.enter_context(Solver(param, device=d, **options)) for d in names]
        first = solvers[0].net
        if not first.learnable_params:
            message = "got a net without parameters, expected one to train; compare without steps"
            raise NetError(message, code=ErrorCode.MISSING, field="steps")
        for solver in solvers:
            if prepare is not None:
                prepare(solver.net)
            params = solver.net.learnable_params
            for mine, theirs in zip(first.learnable_params, params, strict=True):
                theirs.copy_from(mine)
        found: list[TrainingStep] = []
        for iteration in range(1, steps + 1):
            for solver in solvers:
                solver.step(1)
            expected = solvers[0].smoothed_loss
            for name, other in zip(names[1:], solvers[1:], strict=True):
                worst = _worst_parameter(name, other.net, first)
                found.append(TrainingStep(iteration, name, other.smoothed_loss, expected, worst))
        return found


def _solver(
    source: str | os.PathLike[str] | NetParameter | SolverParameter,
    level: int,
    stages: Sequence[str],
) -> SolverParameter:
    """Return a solver message for a net, or a given one, which writes no snapshots."""
    if isinstance(source, SolverParameter):
        param = SolverParameter()
        param.CopyFrom(source)
        param.snapshot = 0
        return param
    param = SolverParameter(
        base_lr=0.01, lr_policy="fixed", momentum=0.9, snapshot_after_train=False, display=0
    )
    param.train_state.level = level
    param.train_state.stage.extend(stages)
    if isinstance(source, NetParameter):
        param.net_param.CopyFrom(source)
    else:
        param.net = os.fspath(source)
    return param


def _worst_parameter(device: str, net: Net, first: Net) -> Difference:
    """Return the parameter with the largest error, relative to its layer's largest values."""
    found = []
    for layer, other in zip(net.layers, first.layers, strict=True):
        # a bias that starts at 0 before a BatchNorm contains rounding errors alone
        weight = other.blobs[0].cpu_data() if other.blobs else np.empty(0)
        largest = float(np.max(np.abs(weight), initial=0))
        for index, (mine, theirs) in enumerate(zip(layer.blobs, other.blobs, strict=True)):
            stats = error_stats(mine.cpu_data(), theirs.cpu_data(), largest)
            name = f"parameter {index}"
            found.append(Difference(layer.name, layer.type, name, device, stats))
    return max(found, key=lambda one: one.relative)
