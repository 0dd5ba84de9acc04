"""Memory usage of a net by part, and the batch size that would fit.

Usage is counted in the arrays of memories, or computed from shapes before arrays exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.core.memory_info import HOST
from demitasse.core.text import bytes_text
from demitasse.errors import DemitasseError, OutOfMemoryError
from demitasse.memory import SyncedMemory
from demitasse.net.structure import Structure
from demitasse.plan import Plan

if TYPE_CHECKING:
    from demitasse.net.net import Net


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a device's memory by purpose.

    Attributes:
        parameters: Values of parameters; shared ones count once.
        parameter_gradients: Gradients of parameters.
        history: History of a solver for each parameter.
        blobs: Data of blobs, in buffers that several blobs may share.
        gradients: Gradients of blobs.
        state: State of layers from forward to backward, and from pass to pass.
        scratch: Working memory: columns, workspaces, converted copies, needs of captured passes.
    """

    parameters: int = 0
    parameter_gradients: int = 0
    history: int = 0
    blobs: int = 0
    gradients: int = 0
    state: int = 0
    scratch: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(asdict(self).values())

    @property
    def growing(self) -> int:
        """Sum of the parts that grow with the batch, except scratch, whose size is a choice."""
        return self.blobs + self.gradients + self.state


Memories = Iterable[SyncedMemory]


def memory_held(net: Net, history: Memories = ()) -> MemoryUse:
    """Return the present usage of a net and its solver's ``history``, in arrays on its device."""
    return _held(net.structure, net.plan, net.device, history)


def bytes_taken(memories: Memories) -> int:
    """Return the bytes of all arrays of some memories; shared arrays count once."""
    shares = {share.array: share.nbytes for memory in memories for share in memory.shares()}
    return sum(shares.values())


def _held(structure: Structure, plan: Plan, device: Device, history: Memories = ()) -> MemoryUse:
    place = HOST if device.shares_host else str(device)
    seen: set[int] = set()

    def count(memories: Memories) -> int:
        found = {
            share.array: share.nbytes
            for memory in memories
            for share in memory.shares()
            if share.place == place and share.array not in seen
        }
        seen.update(found)
        return sum(found.values())

    return _by_part(structure, plan, device, history, count, structure.blob_list)


def _needed(structure: Structure, plan: Plan, device: Device) -> MemoryUse:
    """Return the computed usage for the present shapes: one array for each memory."""
    seen: set[int] = set()

    def count(memories: Memories) -> int:
        own, slots = 0, dict[int, int]()
        for memory in memories:
            if memory.serial in seen:
                continue
            seen.add(memory.serial)
            if memory.assignment is None:
                own += memory.device_nbytes
            else:
                slot = id(memory.assignment.slot)
                slots[slot] = max(slots.get(slot, 0), memory.device_nbytes)
        return own + sum(slots.values())

    needs, blobs = structure.needs.blobs, structure.blob_list
    trained = structure.phase == "TRAIN"
    wanted = [blob for blob, need in zip(blobs, needs, strict=True) if need and trained]
    return _by_part(structure, plan, device, (), count, wanted)


def _by_part(
    structure: Structure,
    plan: Plan,
    device: Device,
    history: Memories,
    count: Callable[[Memories], int],
    wanted: Sequence[Blob],
) -> MemoryUse:
    """Count memories; each counts for the first part that has it.

    ``count`` returns the bytes of those memories that were not counted before; ``wanted`` are the
    blobs whose gradients count.
    """
    trained = structure.phase == "TRAIN"
    internal = [blob for layer in structure.layers for blob in layer.internal_blobs()]
    params = structure.params_list
    return MemoryUse(
        parameters=count(blob.data_memory for blob in params),
        parameter_gradients=count(blob.diff_memory for blob in params) if trained else 0,
        history=count(history),
        state=count(m for blob in internal for m in (blob.data_memory, blob.diff_memory)),
        blobs=count(blob.data_memory for blob in structure.blob_list),
        gradients=count(blob.diff_memory for blob in wanted),
        scratch=plan.held + device.backend.working,
    )


def suggest_batch_size(
    error: OutOfMemoryError, structure: Structure, plan: Plan, device: Device
) -> None:
    """Add the computed batch size that would fit to an error, as advice and as a detail."""
    first = next((node.tops[0] for node in structure.graph.nodes if node.tops), None)
    if first is None or not structure.blob_list[first].shape:
        return
    batch = structure.blob_list[first].shape[0]
    with suppress(DemitasseError, MemoryError, OSError):
        if (free := device.memory_info().free) is None:
            return
        needed, held = _needed(structure, plan, device), _held(structure, plan, device)
        room = max(0, free + held.total - (needed.total - needed.growing))
        fits = batch * room // needed.growing if needed.growing else batch
        text = (
            f". By computation, blobs need {bytes_text(needed.growing)} at batch size {batch}, and "
            f"{bytes_text(room)} are available"
        )
        if fits < batch:
            error.details["largest_batch"] = fits
            text += f": a batch of {fits} fits" if fits else ": not even a batch of 1 fits"
        error.advice = text
