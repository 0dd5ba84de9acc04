"""Report: the code that runs each layer, why nothing faster does, costs, and measured times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Self

from demitasse.backends.step import AnyStep
from demitasse.blob import Blob
from demitasse.core.deprecated import deprecated_attribute
from demitasse.plan.plan import Plan
from demitasse.plan.planned_layer import PlannedLayer


@dataclass(frozen=True)
class LayerReport:
    """One layer of a prepared plan.

    A layer that runs as part of the Step of a layer before it has no code of its own.

    Attributes:
        name: Name of the layer.
        type: Type of the layer.
        code: Code of forward, in a word: "portable", "numpy", "jit:avx2", "direct llvm:avx2".
        backward_code: Code of backward; empty for a layer without a gradient.
        fused: Names of the layers that run as one with this layer.
        part_of: Name of the layer whose Step runs this one forward; empty for its own Step.
        why: Why nothing faster runs; empty if the backend has nothing faster.
        why_not_fused: Why no more of the layers after this one run as one with it; empty if none
            could.
        multiply_adds: Multiply-adds of the forward pass by definition, fused layers included.
        backward_multiply_adds: Multiply-adds of the wanted gradients.
        bytes: Least bytes that the forward pass reads and writes, fused layers included.
        backward_bytes: Least bytes that the wanted gradients read and write.
        workspace: Scratch memory of the layer's Steps, in bytes.
    """

    name: str
    type: str
    code: str = ""
    backward_code: str = ""
    fused: tuple[str, ...] = ()
    part_of: str = ""
    why: str = ""
    why_not_fused: str = ""
    multiply_adds: int = 0
    backward_multiply_adds: int = 0
    bytes: int = 0
    backward_bytes: int = 0
    workspace: int = 0

    why_alone = deprecated_attribute("LayerReport", "why_alone", "why_not_fused")


def report(plan: Plan) -> list[LayerReport]:
    """Return a report of each layer of a plan whose shapes are known, as after ``Net.reshape``."""
    plan.prepare_replayed()
    layers: list[LayerReport] = []
    while len(layers) < len(plan.entries):
        head = plan.entries[len(layers)]
        count = head.group.count if head.group is not None else 1
        members = plan.entries[len(layers) : len(layers) + count]
        layers += [_first(head, members), *(_part(member, head) for member in members[1:])]
    return layers


def _first(entry: PlannedLayer, members: Sequence[PlannedLayer]) -> LayerReport:
    """Report the layer whose Step runs ``members``, the first of which is the layer itself."""
    step = entry.step if entry.group is None else entry.group.step
    together = entry.group is not None and entry.group.step.own_backward
    back = step if together else entry.step
    return LayerReport(
        name=entry.layer.name, type=entry.layer.type,
        code="portable" if step is None else step.code, backward_code=_backward_code(entry, back),
        fused=tuple(member.layer.name for member in members[1:]), why=entry.why,
        why_not_fused=entry.why_not_fused,
        multiply_adds=sum(_multiply_adds(member) for member in members),
        backward_multiply_adds=_backward_multiply_adds(entry), bytes=_bytes(members),
        backward_bytes=_backward_bytes(entry), workspace=entry.workspace,
    )  # fmt: skip


def _part(entry: PlannedLayer, head: PlannedLayer) -> LayerReport:
    """Report a layer that runs as part of the Step of ``head``."""
    name, kind = entry.layer.name, entry.layer.type
    part = LayerReport(name, kind, part_of=head.layer.name, workspace=entry.workspace)
    if head.group is not None and head.group.step.own_backward:
        return part
    return replace(
        part,
        backward_code=_backward_code(entry, entry.step),
        backward_multiply_adds=_backward_multiply_adds(entry),
        backward_bytes=_backward_bytes(entry),
    )


def _backward_code(entry: PlannedLayer, step: AnyStep | None) -> str:
    if not entry.binding.backward:
        return ""
    return "portable" if step is None else step.backward_code


def _multiply_adds(entry: PlannedLayer) -> int:
    return entry.layer.op.multiply_adds if entry.layer.op is not None else 0


def _backward_multiply_adds(entry: PlannedLayer) -> int:
    """Return the multiply-adds of the gradients: one forward each for the input and the weights."""
    binding, layer = entry.binding, entry.layer
    if not binding.backward:
        return 0
    weights = any(layer.param_propagate_down(i) for i in range(len(layer.blobs)))
    return _multiply_adds(entry) * (int(any(binding.propagate_down)) + int(weights))


def _bytes(members: Sequence[PlannedLayer]) -> int:
    """Return the bytes of inputs, outputs and parameters of layers that run as one."""
    written = {id(blob) for member in members for blob in member.binding.top}
    first, last = members[0].binding, members[-1].binding
    reads = [blob for m in members for blob in m.binding.bottom if id(blob) not in written]
    in_place = [blob for blob in first.bottom if id(blob) in written]
    params = [blob for member in members for blob in member.layer.blobs]
    return _nbytes([*reads, *in_place, *params, *last.top])


def _backward_bytes(entry: PlannedLayer) -> int:
    """Return the bytes of the tops' gradients, their factors, and the computed gradients."""
    binding, layer = entry.binding, entry.layer
    if not binding.backward:
        return 0
    wanted = [b for b, down in zip(binding.bottom, binding.propagate_down, strict=True) if down]
    weights = [b for i, b in enumerate(layer.blobs) if layer.param_propagate_down(i)]
    return _nbytes([*binding.top, *binding.bottom, *layer.blobs, *wanted, *weights])


def _nbytes(blobs: Sequence[Blob]) -> int:
    return sum(blob.data_memory.nbytes for blob in blobs)


class Stopwatch:
    """Measures the seconds of each layer of a plan, forward and backward, in its ``with`` block.

    The stopwatch waits for the device after each layer. A layer's time includes copies of its
    inputs. Layers that run as one have their time at the first of them.
    """

    def __init__(self, plan: Plan, synchronize: Callable[[], None]) -> None:
        self._plan, self._synchronize = plan, synchronize
        self.forward = [0.0] * len(plan.entries)
        self.backward = [0.0] * len(plan.entries)
        self._since = 0.0

    def __enter__(self) -> Self:
        self._before, self._plan.observer = self._plan.observer, self
        return self

    def __exit__(self, *error: object) -> None:
        self._plan.observer = self._before

    def before_pass(self) -> None:
        """Start the time of the first layer of a pass."""
        self._synchronize()
        self._since = perf_counter()

    def before_step(self, layers: range, *, backward: bool) -> None:
        """Do nothing: a layer's time starts at the end of the layer before."""

    def after_step(self, layers: range, *, backward: bool) -> None:
        """Add the time of layers that have run as one."""
        self._synchronize()
        now = perf_counter()
        (self.backward if backward else self.forward)[layers.start] += now - self._since
        self._since = now
