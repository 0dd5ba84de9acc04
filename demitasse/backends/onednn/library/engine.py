"""Engine of the Steps: the library, its layouts, shared memory."""

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import ChannelSlice, aligned, give_back
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.language.target import vector_width
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.numpy.step import Engine as HostEngine
from demitasse.backends.onednn.library import layout as layouts
from demitasse.backends.onednn.library.constants import Arg, Query
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.library import AVX2, AVX512, failure, instruction_set, load
from demitasse.backends.onednn.library.primitive import (
    CodeFamily,
    CopyDescription,
    Description,
    Primitive,
    Stream,
    Undescribed,
    make_attributes,
)
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined, decline_if
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DeviceError, ErrorCode

CONVOLUTIONS: dict[str, dict[Query, int]] = {
    "convolution_forward": {Query.SRC: 2, Query.WEIGHTS: 3, Query.DST: 5},
    "convolution_backward_weights": {Query.SRC: 1, Query.DIFF_WEIGHTS: 2, Query.DIFF_DST: 4},
    "convolution_backward_data": {Query.DIFF_SRC: 1, Query.WEIGHTS: 2, Query.DIFF_DST: 3},
}
"""Places of descriptors among the arguments of :meth:`Engine.describe`."""

SLAB = 1 << 20
"""Elements that are moved to a layout at a time, of an array that is given back."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.workspaces: list[np.ndarray] = []
        self.lent: dict[int, np.ndarray] = {}
        self.reorders: dict[tuple[Layout, Layout], Primitive] = {}


class Engine(HostEngine):
    """The library, with a stream to run in; or layouts, copies and kernels of our own alone.

    Attributes:
        wide: Whether the library uses AVX-512.
        tuning: Of our own kernels, for the instruction set that the library uses; none below AVX2.
        attributes: Of primitives without anything after them.
    """

    def __init__(self, library: Any) -> None:
        super().__init__()
        self.library = library
        best = 0 if library is None else instruction_set(library)
        self.wide = best >= AVX512
        self.tuning = Tuning(width=16 if self.wide else 8 if best >= AVX2 else 0)
        if library is None:  # the other code is numpy's
            kernels = ("few_inputs", "depthwise", "few_outputs", "grouped", "igemm")
            self.tuning = Tuning(vector_width(), always=frozenset(kernels))
        self.stream = Stream(library)
        self.handle = self.stream.engine
        self.attributes = make_attributes(library)
        self._strided: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._parts: dict[ChannelSlice, Layout] = {}
        self._any: dict[tuple[int, ...], int] = {}
        self._own = _OfThread()
        self._grown = 0

    # -- primitives ------------------------------------------------------------------------------

    def describe(
        self, function: str, *arguments: Any, attributes: int | None = None, general: bool = False
    ) -> Description:
        """Ask for a primitive.

        ``arguments`` are those of the library's function between the engine and the attributes,
        with layouts and descriptions for their handles. ``general`` accepts slow code.

        Raises:
            Declined: The library has only a slow, general one, or none.
        """
        handles = [
            value.handle if isinstance(value, (Layout, Description)) else value
            for value in arguments
        ]
        if self.library is None:
            return self._layouts_alone(function, handles)
        words = _words(function)
        make = getattr(self.library, f"dnnl_{function}_primitive_desc_create")
        attributes = self.attributes if attributes is None else attributes
        found = self._made(f"oneDNN's {words}", make, self.handle, *handles, attributes)
        message = f"oneDNN's {words} is slow for this: {found.implementation}"
        decline_if(found.family is CodeFamily.REFERENCE and not general, message)
        return found

    def _made(self, title: str, make: Callable[..., int], *arguments: Any) -> Description:
        handle = c_void_p()
        status = make(ctypes.byref(handle), *arguments)
        if status or not handle.value:
            message = f"{title} does not take this: {failure(status)}"
            raise Declined(message)
        return Description(self.library, handle.value)

    def _layouts_alone(self, function: str, arguments: Sequence[Any]) -> Description:
        """Return the layouts of a convolution, without the library: images have channels last."""
        message = f"oneDNN is not here, whose {_words(function)} this needs"
        places = CONVOLUTIONS.get(function)
        if places is None:
            raise Declined(message)
        descriptors = {}
        for what, place in places.items():
            known = layouts.arrangement_of(arguments[place])
            descriptors[what] = arguments[place]
            if not known.strides:
                weights = what in (Query.WEIGHTS, Query.DIFF_WEIGHTS)
                descriptors[what] = (
                    self.plain(known.shape).handle if weights else self.innermost(known.shape, 1)
                )
        return Undescribed(descriptors, f"no kernel of ours takes this; {message}")

    def describe_reorder(self, here: int, there: int) -> Description:
        """Ask for a copy from one descriptor to another."""
        if self.library is None:
            tuning = replace(self.tuning, threads=wanted())
            ends = layouts.arrangement_of(here), layouts.arrangement_of(there)
            return CopyDescription(*ends, tuning)
        make = self.library.dnnl_reorder_primitive_desc_create
        title = "oneDNN's copy between layouts"
        return self._made(title, make, here, self.handle, there, self.handle, self.attributes)

    def reorder(self, source: np.ndarray, here: Layout, target: np.ndarray, there: Layout) -> None:
        """Copy elements from one layout to another of the same shape; padding becomes 0.

        Queued calls run first; the copy is complete on return.
        """
        copy = self._known_copier(here, there)
        with command_queue.immediate():
            _run(copy, source, target)

    def move(self, source: np.ndarray, target: np.ndarray, there: Layout) -> None:
        """Copy elements from C order to a layout, and release ``source``.

        Large arrays are copied slab by slab, and the memory of each copied slab is returned to
        the system. The two arrays are never complete at the same time.
        """
        parts = layouts.slabs(self.library, there, SLAB)
        copies = [(part, self._known_copier(self.plain(part.shape), part)) for part in parts]
        read = written = 0
        # an interrupt would leave half of each array
        with command_queue.immediate(), Uninterrupted():
            for part, copy in copies:
                old = source[read : read + math.prod(part.shape)]
                _run(copy, _filled(old, part), target[written : written + part.size])
                if len(parts) > 1:
                    give_back(old)
                read, written = read + old.size, written + part.size

    def _known_copier(self, here: Layout, there: Layout) -> Primitive:
        known = self._own.reorders
        primitive = known.get((here, there))
        if primitive is None:
            primitive = known[here, there] = self.copier(here, there)
        return primitive

    def copier(self, here: Layout, there: Layout) -> Primitive:
        """Return a reorder from one layout, argument 0, to another of the same shape, argument 1.

        Raises:
            DeviceError: The library has no such reorder.
        """
        try:
            found = self.describe_reorder(here.handle, there.handle)
        except Declined as declined:
            message = f"oneDNN failed: {declined}, {here} and {there}"
            raise DeviceError(message, code=ErrorCode.FAILED, library="oneDNN") from None
        return found.primitive(self.stream, [(Arg.SRC, here.handle), (Arg.DST, there.handle)])

    # -- layouts ---------------------------------------------------------------------------------

    def any(self, shape: tuple[int, ...]) -> int:
        """Return a descriptor that leaves the layout of ``shape`` to the primitive."""
        found = self._any.get(shape)
        if found is None:
            found = self._any.setdefault(shape, layouts.any_layout(self.library, shape))
        return found

    def plain(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout of a shape in C order."""
        return layouts.plain(self.library, shape)

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
        """Return the descriptor of a part of a buffer; it lives as long as the process."""
        found = self._strided.get((shape, strides))
        if found is None:
            made = layouts.strided(self.library, shape, strides)
            found = self._strided.setdefault((shape, strides), made)
        return found

    def innermost(self, shape: tuple[int, ...], axis: int) -> int:
        """Return the descriptor of C order but for one axis, whose elements lie side by side."""
        outer = (*shape[:axis], *shape[axis + 1 :], shape[axis])
        strides = [*layouts.c_order(outer)[:-1]]
        strides.insert(axis, 1)
        return self.strided(shape, tuple(strides))

    def innermost_layout(self, shape: tuple[int, ...], axis: int) -> Layout:
        """Return the layout with one axis innermost."""
        return layouts.layout_of(self.library, self.innermost(shape, axis))

    def strided_layout(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
        """Return the layout with some strides."""
        return layouts.layout_of(self.library, self.strided(shape, strides))

    def part(self, channel_slice: ChannelSlice) -> Layout:
        """Return the layout of a range of channels of images with their channels last."""
        found = self._parts.get(channel_slice)
        if found is None:
            found = self._parts.setdefault(channel_slice, layouts.part(self.library, channel_slice))
        return found

    def whole(self, layout: Layout) -> Layout:
        """Return the layout of a separate memory: channels last for a channel slice."""
        channel_slice = layout.channel_slice
        return layout if channel_slice is None else self.innermost_layout(layout.shape, 1)

    # -- memory ----------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of this thread's working memory, that of primitives included."""
        arrays = (*self._own.workspaces, *self._own.lent.values())
        return super().nbytes + sum(array.nbytes for array in arrays) + self.stream.nbytes

    @property
    def grown(self) -> int:
        """Number of reallocations of working memory, in any thread."""
        return self._grown + self.stream.grown

    def workspaces(self, *sizes: int) -> list[np.ndarray]:
        """Return arrays of at least these sizes, shared by all Steps of a thread."""
        own = self._own.workspaces
        for place, size in enumerate(sizes):
            if place == len(own):
                own.append(aligned(size))
            elif own[place].shape[0] < size:
                own[place] = aligned(size)
                self._grown += 1
        return own[: len(sizes)]

    def scratch_for(self, role: int, size: int) -> np.ndarray:
        """Return a scratch array for an argument of this role, shared by all Steps of a thread.

        Shape: (size,).
        """
        lent = self._own.lent
        found = lent.get(role)
        if found is None or found.shape[0] < size:
            self._grown += found is not None
            found = lent[role] = aligned(size)
        return found[:size]


def _filled(values: np.ndarray, layout: Layout) -> np.ndarray:
    """Return values in C order; missing last rows are zeros."""
    lacking = math.prod(layout.shape) - values.size
    return np.concatenate([values, np.zeros(lacking, values.dtype)]) if lacking > 0 else values


def _run(copy: Primitive, source: np.ndarray, target: np.ndarray) -> None:
    copy.bind(0, source)
    copy.bind(1, target)
    copy.run()
    copy.release()


def _words(function: str) -> str:
    """Return a function's name as a message says it: "convolution backward data"."""
    return function.replace("_", " ")


@cache
def engine() -> Engine:
    """Return this process's engine."""
    return Engine(load())
