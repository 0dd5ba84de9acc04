"""Verification: every Step of a pass, compared with the layers' portable code on the same inputs.

A *reference* of the net runs portable code on the host. Before a Step runs, its inputs are copied
to the reference; after it, the results of both are compared. Errors thus never accumulate, and the
first difference names the Step that is wrong. A pass takes several times as long as otherwise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from demitasse.backends.step import AnyStep
from demitasse.backends.storage import Stored
from demitasse.blob import Blob, VersionCounter
from demitasse.core.device import Device
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.io.proto import LayerParameter
from demitasse.layers import LayerContext
from demitasse.layers.context import PassCounter
from demitasse.layers.metadata import layer_metadata
from demitasse.memory import SyncedMemory
from demitasse.net.build import assemble
from demitasse.net.structure import Structure
from demitasse.plan import Plan, PlannedLayer

TOLERANCE: Mapping[Stored, float] = {"float": 1e-3, "half": 1e-2, "bfloat16": 3e-2}
"""Largest difference of a result, relative to its largest value, by the storage of the net."""

FLOOR, SUM_FLOOR = 1e-6, 1e-3
"""Least scale of a result, relative to the largest input: smaller results are rounding errors.

Gradients and running averages are sums over many elements, which may cancel.
"""

CANCELLED = 1e-2
"""Least scale of a parameter's gradient, relative to the sum of the absolute values of its terms.

The gradient of a bias before a BatchNorm is 0 except for rounding errors, because its terms cancel.
"""


@dataclass(frozen=True)
class Compared:
    """One result of a Step: a blob of the net, and that of the reference."""

    name: str  # as "top 'conv1'"
    blob: Blob
    other: Blob
    diff: bool = False  # the gradient of the blob is compared
    floor: float = 0.0  # least scale of the comparison


class _Reference:
    """The layers of a net on the host, with blobs of their own, run by portable code.

    Layers that bring in data, and layers of user code, run once only: in their place the reference
    has Input layers, and nothing for layers without tops.
    """

    def __init__(self, structure: Structure, context: LayerContext) -> None:
        message = deepcopy(structure.message)
        del message.layer[:]
        self.indices: dict[int, int] = {}  # of the reference's layers by those of the net
        for index, param in enumerate(structure.layer_messages()):
            if param.bottom and not layer_metadata(param.type).opaque:
                if structure.top_ids(index):
                    self.indices[index] = len(message.layer)
                    message.layer.append(param)
                continue
            fresh = [name for name in param.top if name not in param.bottom]
            if fresh:
                source = LayerParameter(name=param.name, type="Input", top=fresh)
                for name in fresh:
                    source.input_param.shape.add().dim.extend(structure.blobs[name].shape)
                message.layer.append(source)
        message.ClearField("force_backward")
        counter, device = PassCounter(), Device("numpy")
        self.context = replace(context, device=device, storage="float", pass_counter=counter)
        with device.backend.enter():
            made = assemble(message, self.context)
        self.plan = Plan(made.bindings(), VersionCounter(), optimize=False)


class StepVerifier:
    """Compares the results of each Step with portable code; an ``Observer`` of a plan."""

    def __init__(
        self,
        structure: Structure,
        context: LayerContext,
        plan: Callable[[], Plan],
        tolerance: float = TOLERANCE["float"],
    ) -> None:
        self._structure, self._context, self._plan = structure, context, plan
        self._tolerance = tolerance
        self._versions: dict[tuple[int, int], tuple[int, int]] = {}
        self._ran: set[int] = set()
        self._read: list[str] = []
        self._scale = 0.0

    def before_pass(self) -> None:
        """Build the reference before the first pass."""
        _ = self._reference

    @cached_property
    def _reference(self) -> _Reference:
        return _Reference(self._structure, self._context)

    def before_step(self, layers: range, *, backward: bool) -> None:
        """Copy the inputs of a Step to the reference."""
        self._read, self._scale = [], 0.0
        if self._step(layers, backward=backward) is None:
            if not backward:
                self._ran.difference_update(layers)  # their state would be of an earlier pass
            return
        copied: set[int] = set()
        for index in reversed(layers) if backward else layers:
            entry, other = self._entry(index), self._reference_layer(index)
            pairs = list(zip(entry.binding.bottom, other.binding.bottom, strict=True))
            tops = list(zip(entry.binding.top, other.binding.top, strict=True))
            if backward:
                for blob, to in [*pairs, *tops]:
                    self._copy(blob, to)
                for blob, to in tops:
                    if id(blob) not in copied:  # otherwise computed by a later layer of the Step
                        self._copy(blob, to, diff=True, name=f"gradient of top {blob.name!r}")
                copied |= {id(blob) for blob in entry.binding.bottom}
            else:
                for blob, to in pairs:
                    if id(blob) not in copied:  # otherwise computed by an earlier layer of the Step
                        self._copy(blob, to, name=f"bottom {blob.name!r}")
                copied |= {id(blob) for blob in entry.binding.top}
            self._copy_parameters(index, backward=backward)

    def after_step(self, layers: range, *, backward: bool) -> None:
        """Run portable code on the copied inputs; raise a NetError if a result differs."""
        step = self._step(layers, backward=backward)
        if step is None:
            return
        context = self._reference.context
        context.pass_counter.passes = self._context.pass_counter.passes
        try:
            with context.device.backend.enter():
                for index in reversed(layers) if backward else layers:
                    self._run(index, backward=backward)
        except DemitasseError as error:
            error.at("portable code, run for the verification of a Step")
            raise
        results = self._gradients(layers) if backward else self._tops(layers)
        for result in results:
            self._compare(result, step, layers, backward=backward)

    def _entry(self, index: int) -> PlannedLayer:
        return self._plan().entries[index]

    def _reference_layer(self, index: int) -> PlannedLayer:
        return self._reference.plan.entries[self._reference.indices[index]]

    def _step(self, layers: range, *, backward: bool) -> AnyStep | None:
        """Return the Step that runs some layers, or None for layers that are not compared."""
        entries = [self._entry(index) for index in layers]
        if any(index not in self._reference.indices for index in layers):
            return None
        if backward:
            if any(index not in self._ran for index in layers):
                return None
            last = entries[-1]
            if len(layers) > 1 and last.executed_group is not None:
                return last.executed_group.step
            return last.executed_step if last.binding.backward else None
        group = entries[0].group if len(layers) > 1 else None
        return entries[0].step if group is None else group.step

    def _run(self, index: int, *, backward: bool) -> None:
        """Run the portable code of one layer of the reference."""
        entry, other = self._entry(index), self._reference_layer(index)
        if entry.layer.is_alias:
            return
        if not backward:
            self._ran.add(index)
            other.reshape()
            other.forward()
        elif entry.binding.backward:
            for param in range(len(entry.layer.blobs)):
                wanted = entry.layer.param_propagate_down(param)
                other.layer.set_param_propagate_down(param, wanted)
            flags = entry.binding.propagate_down
            other.layer.backward(other.binding.top, flags, other.binding.bottom)

    def _copy(self, blob: Blob, to: Blob, *, diff: bool = False, name: str = "") -> None:
        """Copy data or gradient to the reference; ``name`` an input of the Step, for messages."""
        to.reshape(blob.shape)
        array = _values(blob, diff=diff)
        memory = to.diff_memory if diff else to.data_memory
        if array is None:
            memory.clear()
        else:
            memory.mutable_cpu_data(discard=True)[: blob.count] = array.reshape(-1)
        if name:
            largest, text = _statistics(array, blob.shape)
            self._scale = max(self._scale, largest)
            self._read.append(f"{name} {text}")

    def _copy_parameters(self, index: int, *, backward: bool) -> None:
        """Copy the parameters and the state of a layer, if they have changed."""
        entry, other = self._entry(index), self._reference_layer(index)
        params = list(zip(entry.layer.blobs, other.layer.blobs, strict=True))
        for number, (blob, to) in enumerate(params):
            memory = blob.data_memory
            version = (memory.serial, memory.version)
            if self._versions.get((index, number)) != version:
                self._copy(blob, to)
                memory = blob.data_memory
                self._versions[index, number] = (memory.serial, memory.version)
            if backward and entry.layer.param_propagate_down(number):
                self._copy(blob, to, diff=True)
            self._read.append(f"parameter {number} {_statistics(to.cpu_data(), blob.shape)[1]}")
        if not backward:
            states = entry.layer.all_state_blobs(), other.layer.all_state_blobs()
            for blob, to in zip(*states, strict=False):
                self._copy(blob, to)

    def _tops(self, layers: range) -> Iterator[Compared]:
        """Yield the results of a forward Step: tops, and parameters that it has changed."""
        elidable = self._plan().elidable
        read = {id(b) for index in layers[1:] for b in self._entry(index).binding.bottom}
        seen: set[int] = set()
        for index in reversed(layers):
            entry, other = self._entry(index), self._reference_layer(index)
            if entry.layer.is_alias:
                continue
            floor = FLOOR * self._scale
            for blob, to in zip(entry.binding.top, other.binding.top, strict=True):
                elided = id(blob) in elidable and id(blob) in read
                if id(blob) not in seen and not elided:
                    yield Compared(f"top {blob.name!r}", blob, to, floor=floor)
                seen.add(id(blob))
            for number, blob in enumerate(entry.layer.blobs):
                memory = blob.data_memory
                if self._versions.get((index, number)) != (memory.serial, memory.version):
                    self._versions.pop((index, number), None)
                    name = f"parameter {number} of {entry.binding.label}"
                    to, floor = other.layer.blobs[number], SUM_FLOOR * self._scale
                    yield Compared(name, blob, to, floor=floor)

    def _gradients(self, layers: range) -> Iterator[Compared]:
        """Yield the results of a backward Step: gradients of bottoms and of parameters."""
        for index in reversed(layers):
            entry, other = self._entry(index), self._reference_layer(index)
            binding = entry.binding
            if not binding.backward or entry.layer.is_alias:
                continue
            inner = {id(b) for i in range(layers.start, index) for b in self._entry(i).binding.top}
            bottoms = zip(binding.bottom, other.binding.bottom, strict=True)
            for (blob, to), wanted in zip(bottoms, binding.propagate_down, strict=True):
                if wanted and id(blob) not in inner:
                    name, floor = f"gradient of bottom {blob.name!r}", SUM_FLOOR * self._scale
                    yield Compared(name, blob, to, diff=True, floor=floor)
            diffs = [_values(blob, diff=True) for blob in other.binding.top]
            data = [_values(blob, diff=False) for blob in other.binding.bottom]
            # A bound of the sum of the absolute values of the terms of parameters' gradients.
            terms = sum(float(abs(diff).sum(dtype="float64")) for diff in diffs if diff is not None)
            terms *= max(1.0, *(_statistics(array, ())[0] for array in data))
            for number, blob in enumerate(entry.layer.blobs):
                if entry.layer.param_propagate_down(number):
                    name = f"gradient of parameter {number} of {binding.label}"
                    floor = CANCELLED * terms / max(blob.count, 1)
                    to = other.layer.blobs[number]
                    yield Compared(name, blob, to, diff=True, floor=floor)

    def _compare(self, result: Compared, step: AnyStep, layers: range, *, backward: bool) -> None:
        """Compare one result of a Step with portable code."""
        got = _values(result.blob, diff=result.diff)
        expected = _values(result.other, diff=result.diff)
        if got is None or expected is None or not got.size:
            return
        found = _largest_difference(got, expected)
        if found is None:
            return
        difference, index = found
        scale = max(_statistics(expected, ())[0], result.floor)
        if difference <= self._tolerance * scale:
            return
        code = step.backward_code if backward else step.code
        place = tuple(int(i) for i in index)
        message = (
            f"{type(step).__name__} ({code}) computes {float(got[index]):.6g} for {result.name} "
            f"{result.blob.shape} at {place}, portable code computes "
            f"{float(expected[index]):.6g}; the difference of {difference:.3g} is above "
            f"{self._tolerance:g} of the largest value, {scale:.3g}. It read "
            f"{'; '.join(self._read)}"
        )
        error = NetError(
            message, code=ErrorCode.FAILED, layers=[self._entry(i).layer.name for i in layers],
            step=type(step).__name__, implementation=code, result=result.name, index=place,
            got=float(got[index]), expected=float(expected[index]), difference=difference,
            tolerance=self._tolerance * scale, read=list(self._read),
        )  # fmt: skip
        first, last = self._entry(layers[0]).binding, self._entry(layers[-1]).binding
        span = " to ".join(dict.fromkeys([first.label, last.label]))
        where = f"{span}, {'backward' if backward else 'forward'}"
        raise error.at(where, layer=first.layer.name)


def _values(blob: Blob, *, diff: bool) -> np.ndarray | None:
    """Return data or gradient on the host; None for a cleared memory, which stays cleared."""
    memory: SyncedMemory = blob.diff_memory if diff else blob.data_memory
    if memory.cleared:
        return None
    return blob.cpu_diff() if diff else blob.cpu_data()


def _largest_difference(
    got: np.ndarray, expected: np.ndarray
) -> tuple[float, tuple[Any, ...]] | None:
    """Return the largest difference and its index; infinite where one is NaN or infinite alone."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got.astype(np.float64) - expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    difference = np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))
    index = np.unravel_index(int(difference.argmax()), difference.shape)
    largest = float(difference[index])
    return (largest, tuple(index)) if largest else None


def _statistics(array: np.ndarray | None, shape: Sequence[int]) -> tuple[float, str]:
    """Return the largest finite absolute value of an array, and a description for messages."""
    if array is None or not array.size:
        return 0.0, f"{tuple(shape)}, no values"
    finite = array[np.isfinite(array)]
    if not finite.size:
        return 0.0, f"{tuple(shape)}, no finite values"
    low, high, mean = finite.min(), finite.max(), finite.mean(dtype=np.float64)
    text = f"{tuple(shape)} from {low:.4g} to {high:.4g}, mean {mean:.4g}"
    lost = array.size - finite.size
    return float(max(abs(low), abs(high))), f"{text}, {lost} not finite" if lost else text
