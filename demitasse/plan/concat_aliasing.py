"""Concat aliasing: blobs that may be views of the top of the Concat that reads them.

The layer that writes such a blob may then write into the memory of the top, and the Concat copies
nothing; the Steps decide. In a chain of Concats, all blobs may be views of the last top.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from demitasse.backends import ops
from demitasse.backends.arrays import ChannelSlice
from demitasse.blob import Blob
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.plan.planned_layer import LayerBinding

IMAGE_AXES = 4


class Alias(FrozenStruct):
    """A memory that may be a view of a Concat's top, or the top itself.

    Attributes:
        slot: Place in the memory of the last top of a chain.
        root: Serial of that memory; for the last top, its own serial.
    """

    slot: ChannelSlice
    root: int


class _Use(NamedTuple):
    """Use of a memory by the layer of an index; a top that shares a bottom is not written."""

    layer: int
    shape: tuple[int, ...]
    op: ops.Op | None
    reads: bool
    writes: bool

    @property
    def accepts_view(self) -> bool:
        """True if the layer is as fast where the memory is a view of another."""
        if not self.reads:
            return True
        if self.writes:  # in place, as part of a convolution
            rectifies = isinstance(self.op, ops.Activation) and self.op.function == "relu"
            return rectifies or isinstance(self.op, (ops.BatchNorm, ops.Scale))
        return isinstance(self.op, (ops.BatchNorm, ops.Scale, ops.Concat, ops.Split))


_Uses = Mapping[int, Sequence[_Use]]


def find_aliases(bindings: Sequence[LayerBinding], shareable: Collection[int]) -> dict[int, Alias]:
    """Return the aliases of memories, by their serials; tops with aliases included.

    ``shareable`` are the serials of memories that no caller reads between passes.
    """
    concats = [
        (index, binding, op)
        for index, binding in enumerate(bindings)
        if isinstance(op := binding.layer.op, ops.Concat) and _concats_channels(op)
    ]
    found: dict[int, Alias] = {}
    if not concats:
        return found
    uses = _uses(
        bindings, [blob for _, binding, _ in concats for blob in (*binding.bottom, *binding.top)]
    )
    valid: dict[int, int] = {}  # the first layer that overwrites the contents of each top
    for index, binding, op in reversed(concats):
        top = binding.top[0].data_memory.serial
        if top not in shareable or uses[top][0].layer != index:
            continue
        whole = binding.top[0].shape
        own = found.get(top) or Alias(ChannelSlice(whole, whole, 0), top)
        later = [use.layer for use in uses[top] if use.writes and use.layer > index]
        valid[top] = min([*later, valid.get(top, len(bindings))])
        first = 0
        for blob, shape in zip(binding.bottom, op.bottoms, strict=True):
            serial = blob.data_memory.serial
            free = serial in shareable and serial not in found
            if free and all(
                use.shape == shape
                and use.accepts_view
                and use.layer < (index if use.writes else valid[top])
                for use in uses[serial]
            ):
                found[serial] = Alias(own.slot.part(shape, first), own.root)
                valid[serial] = valid[top]
                found.setdefault(top, own)
            first += shape[1]
    return found


def _concats_channels(op: ops.Concat) -> bool:
    """Return whether a Concat is of the channels of images."""
    return (
        op.dtype == "float32"
        and op.axis == 1
        and len(op.bottoms) > 1
        and all(len(shape) == IMAGE_AXES and 0 not in shape for shape in op.bottoms)
    )


def _uses(bindings: Sequence[LayerBinding], blobs: Sequence[Blob]) -> _Uses:
    """Return the uses of the memories of some blobs, in the order of the layers."""
    wanted = {blob.data_memory.serial for blob in blobs}
    uses: defaultdict[int, list[_Use]] = defaultdict(list)
    for index, binding in enumerate(bindings):
        layer, read = binding.layer, {blob.data_memory.serial for blob in binding.bottom}
        written = {blob.data_memory.serial for blob in binding.top}
        if wanted.isdisjoint(read | written):
            continue
        shares = layer.is_alias or isinstance(layer.op, ops.Split)
        shapes = {(b.data_memory.serial, b.shape) for b in (*binding.bottom, *binding.top)}
        for serial, shape in shapes:
            writes = serial in written and not (shares and serial in read)
            uses[serial].append(_Use(index, shape, layer.op, serial in read, writes))
    return uses
