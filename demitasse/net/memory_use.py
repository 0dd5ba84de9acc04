"""What the parts of a net take of its device's memory, and which batch would fit in what there is.

It is counted in arrays that blobs hold, and computed from shapes before there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol

from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.core.memory_info import HOST
from demitasse.core.text import bytes_text
from demitasse.errors import DemitasseError, OutOfMemoryError
from demitasse.memory import SyncedMemory
from demitasse.net.structure import Structure
from demitasse.plan import Plan

__all__ = ["MemoryUse", "memory_held", "memory_needed", "say_what_fits"]


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a device's memory by what they are for.

    Attributes:
        parameters: Values of parameters; shared ones count once.
        parameter_gradients: Their gradients.
        history: What a solver remembers of each parameter.
        blobs: Data of blobs, in buffers that may serve several of them.
        gradients: Gradients of blobs.
        state: What layers keep from forward to backward, and from pass to pass.
        scratch: Working memory: columns, workspaces, converted copies, what recorded passes need.
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
        """All of them."""
        return sum(asdict(self).values())

    @property
    def growing(self) -> int:
        """Those that grow with the batch, working memory aside: how much is wanted is chosen."""
        return self.blobs + self.gradients + self.state


class Working(Protocol):
    """A net (``demitasse.net.Net``)."""

    structure: Structure
    device: Device

    @property
    def plan(self) -> Plan:
        """How its layers run."""


Memories = Iterable[SyncedMemory]


def memory_held(net: Working, history: Memories = ()) -> MemoryUse:
    """Return what a net holds at present of its device's memory.

    Args:
        net: The net.
        history: Memories of the solver that trains it.
    """
    place = HOST if net.device.shares_host else str(net.device)
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

    return _by_part(net, history, count, net.structure.blob_list)


def memory_needed(net: Working, history: Memories = ()) -> MemoryUse:
    """Return what a net needs for its present shapes, by computation: each memory has one array.

    Args:
        net: The net.
        history: Memories of the solver that trains it.
    """
    seen: set[int] = set()

    def count(memories: Memories) -> int:
        own, slots = 0, dict[int, int]()
        for memory in memories:
            if memory.serial in seen:
                continue
            seen.add(memory.serial)
            if memory.assignment is None:
                own += memory.device_nbytes
            elif memory.assignment.host is None:  # else it lies in another one
                slot = id(memory.assignment.slot)
                slots[slot] = max(slots.get(slot, 0), memory.device_nbytes)
        return own + sum(slots.values())

    needs, blobs = net.structure.needs.blobs, net.structure.blob_list
    trained = net.structure.phase == "TRAIN"
    wanted = [blob for blob, need in zip(blobs, needs, strict=True) if need and trained]
    return _by_part(net, history, count, wanted)


def _by_part(
    net: Working, history: Memories, count: Callable[[Memories], int], wanted: Sequence[Blob]
) -> MemoryUse:
    """Count memories; each counts for the first part that has it.

    Args:
        net: The net.
        history: Memories of its solver.
        count: Returns the bytes of those memories that it was not asked for before.
        wanted: The blobs whose gradients count.
    """
    structure = net.structure
    trained = structure.phase == "TRAIN"
    internal = [blob for layer in structure.layers for blob in layer.internal_blobs()]
    return MemoryUse(
        parameters=count(blob.data_memory for blob in structure.params_list),
        parameter_gradients=count(blob.diff_memory for blob in structure.params_list)
        if trained
        else 0,
        history=count(history),
        state=count(m for blob in internal for m in (blob.data_memory, blob.diff_memory)),
        blobs=count(blob.data_memory for blob in structure.blob_list),
        gradients=count(blob.diff_memory for blob in wanted),
        scratch=net.plan.held + net.device.backend.working,
    )


def say_what_fits(error: OutOfMemoryError, net: Working) -> None:
    """Add to an error which batch would fit, by computation."""
    with suppress(DemitasseError, MemoryError, OSError):
        error.advice = _what_fits(error, net)


def _what_fits(error: OutOfMemoryError, net: Working) -> str:
    structure = net.structure
    free = net.device.memory_info().free
    first = next((node.tops[0] for node in structure.graph.nodes if node.tops), None)
    if free is None or first is None or not structure.blob_list[first].shape:
        return ""
    batch = structure.blob_list[first].shape[0]
    needed, held = memory_needed(net), memory_held(net)
    there = max(0, free + held.total - (needed.total - needed.growing))
    fits = batch * there // needed.growing if needed.growing else batch
    text = (
        f". By computation, blobs need {bytes_text(needed.growing)} at the batch size of {batch}, "
        f"and {bytes_text(there)} are there for them"
    )
    if fits < batch:
        error.details["largest_batch"] = fits
        text += f": a batch of {fits} fits" if fits else ": not even a batch of 1 fits"
    return text
