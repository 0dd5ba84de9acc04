"""What forward passes leave in blobs for later passes, kept for those who may take passes back.

Running averages and hidden states are copied by the first forward pass that changes them after
somebody has asked for them to be remembered. So the copies are part of that pass, and of what is
recorded of it; and nothing is copied where no pass comes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.layers import Layer

__all__ = ["Copies", "States"]


class Copies:
    """Copies of some blobs, on their device, in arrays that stay where they are.

    Args:
        blobs: The blobs.

    Attributes:
        reserved: Whether recorded work copies to them, so that nobody else may.
        owner: Returns whose they are at present, or None.
    """

    def __init__(self, blobs: Sequence[Blob]) -> None:
        self.blobs = list(blobs)
        self.reserved = False
        self.owner: Callable[[], Moment | None] = _nobody
        memories = [blob.data_memory for blob in blobs]
        self._device = memories[0].device if memories else None
        self._arrays = [m.device.backend.zeros(m.size, m.dtype) for m in memories]
        self._shapes: list[tuple[int, ...]] = []
        self._held: list[bool] = []
        self._sources: list[Array | None] = []
        self._copy: Callable[[], None] = _nothing

    def fits(self, blobs: Sequence[Blob]) -> bool:
        """Whether they can be copies of these blobs, as those are now."""
        return len(blobs) == len(self.blobs) and all(
            mine is blob
            and array.shape[0] == blob.data_memory.size
            and blob.data_memory.device is self._device
            for mine, array, blob in zip(self.blobs, self._arrays, blobs, strict=True)
        )

    def make(self) -> None:
        """Copy what the blobs hold now."""
        sources = [_contents(blob) for blob in self.blobs]
        if len(sources) != len(self._sources) or any(
            new is not old for new, old in zip(sources, self._sources, strict=True)
        ):
            pairs = [p for p in zip(sources, self._arrays, strict=True) if p[0] is not None]
            self._copy = self._device.backend.copier(pairs) if self._device and pairs else _nothing
            self._sources = sources
        self._copy()
        self._shapes = [blob.shape for blob in self.blobs]
        self._held = [source is not None for source in sources]

    def take_over(self, other: Copies) -> None:
        """Hold what other copies of the same blobs hold."""
        for array, theirs in zip(self._arrays, other._arrays, strict=True):
            array[...] = theirs
        self._shapes, self._held = other._shapes, other._held

    def put_back(self) -> None:
        """Give the blobs the shapes and the data again that were copied."""
        copies = zip(self.blobs, self._shapes, self._held, self._arrays, strict=True)
        for blob, shape, held, array in copies:
            blob.reshape(shape)
            if not held:
                blob.data_memory.clear()
            else:
                blob.data_memory.mutable_gpu_data(discard=True)[: array.shape[0]] = array


class Moment:
    """A state of the net between two passes that somebody may go back to.

    Attributes:
        copies: Of the blobs then; None while they hold the same still.
    """

    def __init__(self) -> None:
        self.copies: Copies | None = None


class States:
    """The blobs of a net that carry something from one forward pass to the next.

    Args:
        layers: The net's.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = {index: layer for index, layer in enumerate(layers) if layer.has_state}
        self._newest: Callable[[], Moment | None] = _nobody
        self._known: list[Copies] = []

    @property
    def any(self) -> bool:
        """Whether there may be such blobs."""
        return bool(self._layers)

    def remember(self) -> Callable[[], None]:
        """Return a function that brings the blobs back to what they are now."""
        if not self._layers:
            return _nothing
        moment = self._present()
        if moment is None:
            moment = Moment()
            self._newest = weakref.ref(moment)
        return partial(self._put_back, moment)

    def save(self, first: int, last: int) -> None:
        """Copy the blobs if somebody wants them back; ahead of a pass over some layers."""
        if self._layers and any(first <= index <= last for index in self._layers):
            moment = self._present()
            if moment is not None:
                copies = self._spare()
                copies.make()
                copies.owner, moment.copies = weakref.ref(moment), copies

    def reserve(self) -> Copies:
        """Return copies for recorded work, made now."""
        copies = self._spare()
        copies.reserved = True
        copies.make()
        self.saved(copies)
        return copies

    def leave(self, copies: Copies) -> None:
        """Let recorded work make its copies next: who still needs those before gets others."""
        owner = copies.owner()
        if owner is not None and owner.copies is copies:
            others = self._spare()
            others.take_over(copies)
            others.owner, owner.copies = weakref.ref(owner), others

    def saved(self, copies: Copies) -> None:
        """Take note that copies of the present were made ahead of a pass."""
        moment = self._present()
        if moment is not None:
            copies.owner, moment.copies = weakref.ref(moment), copies

    def _present(self) -> Moment | None:
        """Return the moment that somebody remembers and no pass has come since, or None."""
        moment = self._newest()
        return moment if moment is not None and moment.copies is None else None

    def _spare(self) -> Copies:
        """Return copies that nobody needs."""
        blobs = self._blobs()
        self._known = [one for one in self._known if not one.reserved and one.fits(blobs)]
        for copies in self._known:
            owner = copies.owner()
            if owner is None or owner.copies is not copies:
                return copies
        self._known.append(Copies(blobs))
        return self._known[-1]

    def _put_back(self, moment: Moment) -> None:
        if moment.copies is None:  # no pass has come since
            return
        for blob in self._blobs():
            if blob not in moment.copies.blobs:  # there was none: it began with 0
                blob.data_memory.clear()
        moment.copies.put_back()

    def _blobs(self) -> list[Blob]:
        return [blob for layer in self._layers.values() for blob in layer.state_blobs()]


def _contents(blob: Blob) -> Array | None:
    """Return what a blob holds on its device, or None where it holds nothing. Shape: (size,)."""
    if blob.data_memory.cleared:
        return None
    blob.data_memory.before_pass()  # what was written through a live view counts
    return blob.data_memory.gpu_data()


def _nobody() -> None:
    """Stand for the owner of what has none."""


def _nothing() -> None:
    """Stand for work where there is none."""
