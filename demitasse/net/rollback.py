"""Rollback: savepoints of the state that forward passes carry from one to the next.

Running averages and hidden states are copied by the first forward pass after a savepoint that
changes them. The copies are thus part of that pass, and of its captured graph; without a pass
nothing is copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.layers import Layer


def nothing() -> None:
    """Do nothing: the work or the rollback of what needs none."""


class BlobCopies:
    """Copies of some blobs on their device, in arrays whose addresses stay the same."""

    def __init__(self, blobs: Sequence[Blob]) -> None:
        self.blobs = list(blobs)
        self.reserved = False  # for a captured graph: no other work may use the copies
        self.owner: Callable[[], Savepoint | None] = nothing  # the savepoint that uses them
        memories = [blob.data_memory for blob in blobs]
        self._device = memories[0].device if memories else None
        self._arrays = [m.device.backend.zeros(m.size, m.dtype) for m in memories]
        self._shapes: list[tuple[int, ...]] = []
        self._filled: list[bool] = []
        self._sources: list[Array | None] = []
        self._copy: Callable[[], None] = nothing

    def fits(self, blobs: Sequence[Blob]) -> bool:
        """Return whether the arrays can be copies of these blobs, by size and device."""
        return len(blobs) == len(self.blobs) and all(
            mine is blob
            and array.shape[0] == blob.data_memory.size
            and blob.data_memory.device is self._device
            for mine, array, blob in zip(self.blobs, self._arrays, blobs, strict=True)
        )

    def make(self) -> None:
        """Copy the present contents of the blobs."""
        sources = [_contents(blob) for blob in self.blobs]
        if len(sources) != len(self._sources) or any(
            new is not old for new, old in zip(sources, self._sources, strict=True)
        ):
            pairs = [p for p in zip(sources, self._arrays, strict=True) if p[0] is not None]
            if pairs and self._device and not self._device.backend.mutable:  # as good as copies
                arrays = zip(self._arrays, sources, strict=True)
                self._arrays = [old if new is None else new for old, new in arrays]
            elif pairs and self._device:
                self._copy = self._device.backend.copier(pairs)
            else:
                self._copy = nothing
            self._sources = sources
        self._copy()
        self._shapes = [blob.shape for blob in self.blobs]
        self._filled = [source is not None for source in sources]

    def take_over(self, other: BlobCopies) -> None:
        """Copy the contents of other copies of the same blobs."""
        if self._device and not self._device.backend.mutable:
            self._arrays = list(other._arrays)
        else:
            for array, theirs in zip(self._arrays, other._arrays, strict=True):
                array[...] = theirs
        self._shapes, self._filled = other._shapes, other._filled

    def restore(self) -> None:
        """Give the blobs the shapes and the data of the copies."""
        copies = zip(self.blobs, self._shapes, self._filled, self._arrays, strict=True)
        for blob, shape, filled, array in copies:
            blob.reshape(shape)
            # zeros are written: calls that read a cleared memory, which is zero, do not repeat that
            data = blob.data_memory.mutable_gpu_data(discard=True)
            data[: array.shape[0]] = array if filled else 0


class Savepoint:
    """A state between two passes that a rollback can restore."""

    def __init__(self) -> None:
        self.copies: BlobCopies | None = None  # until a pass is about to change the blobs


class StatefulBlobs:
    """The blobs of a net that carry state from one forward pass to the next."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = {index: layer for index, layer in enumerate(layers) if layer.has_state}
        self._newest: Callable[[], Savepoint | None] = nothing
        self._known: list[BlobCopies] = []

    @property
    def any(self) -> bool:
        """True if a layer may have such blobs."""
        return bool(self._layers)

    def savepoint(self) -> Callable[[], None]:
        """Return a function that restores the present contents of the blobs."""
        if not self._layers:
            return nothing
        savepoint = self._pending()
        if savepoint is None:
            savepoint = Savepoint()
            self._newest = weakref.ref(savepoint)
        return partial(self._restore, savepoint)

    def before_pass(self, first: int, last: int) -> None:
        """Copy the blobs for the pending savepoint before layers ``first`` to ``last`` run."""
        if self._pending() and any(first <= index <= last for index in self._layers):
            copies = self._spare()
            copies.make()
            self.assign(copies)

    def reserve(self) -> BlobCopies:
        """Return copies for the use of a captured graph, with the present contents."""
        copies = self._spare()
        copies.reserved = True
        copies.make()
        self.assign(copies)
        return copies

    def before_replay(self, copies: BlobCopies) -> None:
        """Move copies that a savepoint still needs before the replay overwrites them."""
        owner = copies.owner()
        if owner is not None and owner.copies is copies:
            others = self._spare()
            others.take_over(copies)
            others.owner, owner.copies = weakref.ref(owner), others

    def assign(self, copies: BlobCopies) -> None:
        """Give copies of the present contents to the pending savepoint, if there is one."""
        savepoint = self._pending()
        if savepoint is not None:
            copies.owner, savepoint.copies = weakref.ref(savepoint), copies

    def _pending(self) -> Savepoint | None:
        """Return the savepoint since which no pass has changed the blobs, or None."""
        savepoint = self._newest()
        return savepoint if savepoint is not None and savepoint.copies is None else None

    def _spare(self) -> BlobCopies:
        """Return copies that no savepoint needs."""
        blobs = self._blobs()
        self._known = [one for one in self._known if not one.reserved and one.fits(blobs)]
        for copies in self._known:
            owner = copies.owner()
            if owner is None or owner.copies is not copies:
                return copies
        self._known.append(BlobCopies(blobs))
        return self._known[-1]

    def _restore(self, savepoint: Savepoint) -> None:
        if savepoint.copies is None:  # no pass has changed the blobs since
            return
        for blob in self._blobs():
            if blob not in savepoint.copies.blobs:  # created later, and 0 before that
                blob.data_memory.mutable_gpu_data(discard=True)[...] = 0
        savepoint.copies.restore()

    def _blobs(self) -> list[Blob]:
        return [blob for layer in self._layers.values() for blob in layer.state_blobs()]


def _contents(blob: Blob) -> Array | None:
    """Return the data of a blob on its device, or None for a cleared blob. Shape: (size,)."""
    if blob.data_memory.cleared:
        return None
    blob.data_memory.before_pass()  # values written through a live view
    return blob.data_memory.gpu_data()
