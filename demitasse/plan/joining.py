"""Which blobs may lie in the top of the Concat that joins them, so that nothing is copied there.

Whoever writes such a blob may write it right into the memory of the top; whether it does is up to
the Steps. Where a top is itself joined to others, all of them may lie in the last top of the chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from demitasse.backends import ops
from demitasse.backends.home import Home
from demitasse.blob import Blob
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.plan.entry import Place

__all__ = ["Joined", "find_homes"]

IMAGE_AXES = 4


class Joined(FrozenStruct):
    """A memory that may lie in that of a Concat's top, or such a top.

    Attributes:
        home: Where.
        root: Serial of the memory that it is in: of the last top of a chain. Its own, for that one.
    """

    home: Home
    root: int


class _Use(NamedTuple):
    """What a layer does with a memory.

    Attributes:
        layer: Index of the layer.
        shape: Of the blob.
        op: What the layer does.
        reads: Whether it reads it.
        writes: Whether it writes it; who shares its bottom does not.
    """

    layer: int
    shape: tuple[int, ...]
    op: ops.Op | None
    reads: bool
    writes: bool

    @property
    def takes_parts(self) -> bool:
        """Whether it does as well where the memory is in another one."""
        if not self.reads:
            return True
        if self.writes:  # in place, as convolutions do it on the way
            rectifies = isinstance(self.op, ops.Activation) and self.op.function == "relu"
            return rectifies or isinstance(self.op, (ops.BatchNorm, ops.Scale))
        return isinstance(self.op, (ops.BatchNorm, ops.Scale, ops.Concat, ops.Split))


_Uses = Mapping[int, Sequence[_Use]]


def find_homes(places: Sequence[Place], shareable: Collection[int]) -> dict[int, Joined]:
    """Return where memories may lie, by their serials; those in which others may lie, too.

    Args:
        places: The layers with their blobs, whose shapes are known.
        shareable: Serials of memories that nobody looks at between passes.
    """
    joins = [
        (index, place, op)
        for index, place in enumerate(places)
        if isinstance(op := place.layer.op, ops.Concat) and _joins_channels(op)
    ]
    found: dict[int, Joined] = {}
    if not joins:
        return found
    uses = _uses(places, [blob for _, place, _ in joins for blob in (*place.bottom, *place.top)])
    good: dict[int, int] = {}  # up to which layer what is in a top stays as it was joined
    for index, place, op in reversed(joins):
        top = place.top[0].data_memory.serial
        if top not in shareable or uses[top][0].layer != index:
            continue
        own = found.get(top) or Joined(_whole(place.top[0].shape), top)
        later = [use.layer for use in uses[top] if use.writes and use.layer > index]
        good[top] = min([*later, good.get(top, len(places))])
        first = 0
        for blob, shape in zip(place.bottom, op.bottoms, strict=True):
            serial = blob.data_memory.serial
            free = serial in shareable and serial not in found
            if free and _may_move(uses[serial], index, shape, good[top]):
                found[serial] = Joined(own.home.part(shape, first), own.root)
                good[serial] = good[top]
                found.setdefault(top, own)
            first += shape[1]
    return found


def _joins_channels(op: ops.Concat) -> bool:
    """Whether it joins the channels of several images."""
    return (
        op.dtype == "float32"
        and op.axis == 1
        and len(op.bottoms) > 1
        and all(len(shape) == IMAGE_AXES and 0 not in shape for shape in op.bottoms)
    )


def _whole(shape: tuple[int, ...]) -> Home:
    return Home(shape, shape, 0)


def _may_move(uses: Sequence[_Use], joined: int, shape: tuple[int, ...], good: int) -> bool:
    """Whether a memory may lie in the top of layer ``joined``.

    Args:
        uses: What layers do with it.
        joined: The layer.
        shape: Of the bottom there.
        good: The first layer that overwrites the top, in place.
    """
    if any(use.shape != shape or not use.takes_parts for use in uses):
        return False
    return all(use.layer < (joined if use.writes else good) for use in uses)


def _uses(places: Sequence[Place], blobs: Sequence[Blob]) -> _Uses:
    """Return what layers do with the memories of some blobs, in their order."""
    wanted = {blob.data_memory.serial for blob in blobs}
    uses: defaultdict[int, list[_Use]] = defaultdict(list)
    for index, place in enumerate(places):
        layer, read = place.layer, {blob.data_memory.serial for blob in place.bottom}
        written = {blob.data_memory.serial for blob in place.top}
        if wanted.isdisjoint(read | written):
            continue
        shares = layer.is_alias or isinstance(layer.op, ops.Split)
        shapes = {(b.data_memory.serial, b.shape) for b in (*place.bottom, *place.top)}
        for serial, shape in shapes:
            writes = serial in written and not (shares and serial in read)
            uses[serial].append(_Use(index, shape, layer.op, serial in read, writes))
    return uses
