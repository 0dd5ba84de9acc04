"""What runs each layer of a net, why nothing faster does, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from demitasse.blob import Blob
from demitasse.plan.entry import Entry
from demitasse.plan.plan import Plan

__all__ = ["LayerReport", "report"]


@dataclass(frozen=True)
class LayerReport:
    """One layer of a prepared plan.

    A layer that is computed by the Step of a layer before it has no code of its own.

    Attributes:
        name: Of the layer.
        type: Of the layer.
        code: What runs forward, in a word: "portable", "numpy", "jit:avx2", "direct llvm:avx2".
        backward_code: The same backward; empty where the layer has no gradient to compute.
        fused: Names of the layers that are computed along with it.
        part_of: Name of the layer whose Step computes this one in forward; empty for itself.
        why: Why nothing faster runs; empty where the backend knows nothing faster.
        why_alone: Why no more of the layers after it are computed along; empty if none could be.
        multiply_adds: Of the forward pass by the definition, fused layers included.
        backward_multiply_adds: Of the wanted gradients.
        bytes: Least bytes that the forward pass reads and writes, fused layers included.
        backward_bytes: The same of the wanted gradients.
        workspace: Scratch memory of its Steps, in bytes.
    """

    name: str
    type: str
    code: str
    backward_code: str
    fused: tuple[str, ...]
    part_of: str
    why: str
    why_alone: str
    multiply_adds: int
    backward_multiply_adds: int
    bytes: int
    backward_bytes: int
    workspace: int


def report(plan: Plan) -> list[LayerReport]:
    """Say what runs each layer of a plan whose shapes are settled (``Net.reshape`` does that)."""
    return _with_joined_gradients(plan, _each(plan))


def _with_joined_gradients(plan: Plan, layers: list[LayerReport]) -> list[LayerReport]:
    """Return the same, with the code of gradients that are computed as one."""
    index = len(layers) - 1
    while index >= 0:
        group = plan.entries[index].back
        count = 1 if group is None else group.count
        if group is not None:
            for place in range(index - count + 1, index + 1):
                layers[place] = replace(layers[place], backward_code=group.step.backward_code)
        index -= count
    return layers


def _each(plan: Plan) -> list[LayerReport]:
    found: list[LayerReport] = []
    index = 0
    while index < len(plan.entries):
        head = plan.entries[index]
        count = head.group.count if head.group is not None else 1
        members = plan.entries[index : index + count]
        found.append(_first(head, members))
        found += [_part(member, head) for member in members[1:]]
        index += count
    return found


def _first(entry: Entry, members: Sequence[Entry]) -> LayerReport:
    """Report the layer whose Step computes ``members``, itself included."""
    step = entry.step if entry.group is None else entry.group.step
    together = entry.group is not None and entry.group.step.own_backward
    back = step if together else entry.step
    return LayerReport(
        name=entry.layer.name,
        type=entry.layer.type,
        code="portable" if step is None else step.code,
        backward_code=_backward_code(entry, "portable" if back is None else back.backward_code),
        fused=tuple(member.layer.name for member in members[1:]),
        part_of="",
        why=entry.why,
        why_alone=entry.why_alone,
        multiply_adds=sum(_multiply_adds(member) for member in members),
        backward_multiply_adds=_backward_multiply_adds(entry),
        bytes=_bytes(members),
        backward_bytes=_backward_bytes(entry),
        workspace=entry.workspace,
    )


def _part(entry: Entry, head: Entry) -> LayerReport:
    """Report a layer that the Step of ``head`` computes along."""
    together = head.group is not None and head.group.step.own_backward
    back = "portable" if entry.step is None else entry.step.backward_code
    return LayerReport(
        name=entry.layer.name,
        type=entry.layer.type,
        code="",
        backward_code="" if together else _backward_code(entry, back),
        fused=(),
        part_of=head.layer.name,
        why="",
        why_alone="",
        multiply_adds=0,
        backward_multiply_adds=0 if together else _backward_multiply_adds(entry),
        bytes=0,
        backward_bytes=0 if together else _backward_bytes(entry),
        workspace=entry.workspace,
    )


def _backward_code(entry: Entry, code: str) -> str:
    return code if entry.place.backward else ""


def _multiply_adds(entry: Entry) -> int:
    return entry.layer.op.multiply_adds if entry.layer.op is not None else 0


def _backward_multiply_adds(entry: Entry) -> int:
    """Return those of the gradients: as many as forward for the input, and for the weights."""
    place, layer = entry.place, entry.layer
    if not place.backward:
        return 0
    weights = any(layer.param_propagate_down(i) for i in range(len(layer.blobs)))
    return _multiply_adds(entry) * (int(any(place.propagate_down)) + int(weights))


def _bytes(members: Sequence[Entry]) -> int:
    """Return what is read from elsewhere and written for elsewhere, and the parameters."""
    written = {id(blob) for member in members for blob in member.place.top}
    first, last = members[0].place, members[-1].place
    reads = [blob for m in members for blob in m.place.bottom if id(blob) not in written]
    in_place = [blob for blob in first.bottom if id(blob) in written]
    params = [blob for member in members for blob in member.layer.blobs]
    return _nbytes([*reads, *in_place, *params, *last.top])


def _backward_bytes(entry: Entry) -> int:
    """Return the tops' gradients, what they are multiplied with, and the gradients written."""
    place, layer = entry.place, entry.layer
    if not place.backward:
        return 0
    wanted = [b for b, down in zip(place.bottom, place.propagate_down, strict=True) if down]
    weights = [b for i, b in enumerate(layer.blobs) if layer.param_propagate_down(i)]
    return _nbytes([*place.top, *place.bottom, *layer.blobs, *wanted, *weights])


def _nbytes(blobs: Sequence[Blob]) -> int:
    return sum(blob.data_memory.nbytes for blob in blobs)
