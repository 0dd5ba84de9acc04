"""Primitives of the library: descriptors, attributes, candidates, memory handles, stream."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import c_char_p, c_int, c_void_p
from enum import Enum, auto
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import address, aligned
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.library.constants import (
    CPU_ENGINE,
    DEFAULT_STREAM,
    USER_SCRATCHPAD,
    Algorithm,
    Arg,
    Query,
)
from demitasse.backends.onednn.library.layout import (
    Arrangement,
    Layout,
    blocked,
    layout_of,
    layout_with_tag,
)
from demitasse.backends.onednn.library.library import check, create
from demitasse.backends.step import Declined, decline_if
from demitasse.errors import DeviceError, ErrorCode

if TYPE_CHECKING:
    from demitasse.backends.kernels.strided_copy import CopyLoop, StridedCopy
    from demitasse.backends.onednn.library.engine import Engine


class _Argument(ctypes.Structure):
    _fields_ = (("role", c_int), ("memory", c_void_p))


class CodeFamily(Enum):
    """Families of the library's code. Its names end in the instruction set."""

    REFERENCE = auto()
    """Slow code for any operation."""

    SIMPLE = auto()
    """C++ loops for any instruction set, ten times as slow as code for vectors."""

    GEMM = auto()
    """im2col or col2im, and one matrix product."""

    BRGEMM = auto()
    """Batch-reduced matrix products."""

    DIRECT = auto()
    """Generated code of a direct convolution, or of an operation on elements."""

    OTHER = auto()

    @classmethod
    def of(cls, name: str) -> CodeFamily:
        """Return the family of a name, the only place where the library tells its choice."""
        if name.startswith("ref"):
            return cls.REFERENCE
        if name.startswith("brg"):
            return cls.BRGEMM
        if "gemm:" in name:
            return cls.GEMM
        if name.startswith("jit"):
            return cls.DIRECT
        return cls.SIMPLE if name.endswith(":any") else cls.OTHER


class Description:
    """A primitive that could be made: its implementation and the layouts it wants.

    Args:
        handle: oneDNN's primitive descriptor, which belongs to this object from now on.

    Attributes:
        implementation: Name of the code that would run, e.g. "jit:avx512_core", for reports.
        family: The family of the code, for decisions.
    """

    def __init__(self, library: Any, handle: int) -> None:
        self._library, self.handle = library, handle
        weakref.finalize(self, library.dnnl_primitive_desc_destroy, handle).atexit = False
        name = c_char_p()
        check(
            library.dnnl_primitive_desc_query(handle, Query.IMPLEMENTATION, 0, ctypes.byref(name))
        )
        self.implementation = (name.value or b"").decode()
        self.family = CodeFamily.of(self.implementation)

    def layout(self, what: Query) -> Layout:
        """Return the layout of one of its memories."""
        return layout_of(self._library, self.descriptor(what))

    def layouts(self, *what: Query) -> list[Layout]:
        """Return the layouts of several memories."""
        return [self.layout(one) for one in what]

    def bytes_of(self, what: Query) -> int:
        """Return the size of its workspace or scratchpad."""
        descriptor = self.descriptor(what)
        return int(self._library.dnnl_memory_desc_get_size(descriptor)) if descriptor else 0

    def descriptor(self, what: Query, index: int = 0) -> int:
        """Return the memory descriptor of one of its memories; 0 for none."""
        return self._library.dnnl_primitive_desc_query_md(self.handle, what, index) or 0

    def primitive(self, stream: Stream, uses: Sequence[tuple[int, int]]) -> Primitive:
        """Return the prepared code.

        ``uses`` are role and memory descriptor of every argument, scratch memory aside.

        Raises:
            Declined: There is no code.
        """
        return Primitive(stream, self, uses)


class Undescribed(Description):
    """Layouts of an operation for which there is no library, only kernels of our own or none."""

    implementation, family, handle = "none", CodeFamily.GEMM, 0

    def __init__(self, layouts: Mapping[Query, int], reason: str) -> None:
        self._library, self._layouts, self._reason = None, layouts, reason

    def descriptor(self, what: Query, index: int = 0) -> int:
        del index
        return self._layouts.get(what, 0)

    def primitive(self, stream: Stream, uses: Sequence[tuple[int, int]]) -> Primitive:
        del stream, uses
        raise Declined(self._reason)


class CopyDescription(Description):
    """A copy between layouts by a kernel of our own.

    Args:
        target: Places of the same elements where they are written; padding becomes 0.
    """

    family, handle = CodeFamily.DIRECT, 0

    def __init__(self, source: Arrangement, target: Arrangement, tuning: Tuning) -> None:
        self._library, self.tuning = None, tuning
        self.reach = source.first + source.size, target.first + target.size
        self.pieces = list(copy_pieces(source, target))
        self.implementation = f"copy llvm:{tuning.instructions}"

    def descriptor(self, what: Query, index: int = 0) -> int:
        del what, index
        return 0

    def primitive(self, stream: Stream, uses: Sequence[tuple[int, int]]) -> Primitive:
        del stream
        return CopyPrimitive(self, [role for role, _ in uses])


class CopyPiece(NamedTuple):
    """Elements that nested loops copy.

    Attributes:
        source: Place of the first element that is read; None for zeros.
        target: Place of the first element that is written.
        loops: The loops.
    """

    source: int | None
    target: int
    loops: list[CopyLoop]


def copy_pieces(source: Arrangement, target: Arrangement) -> Iterator[CopyPiece]:
    """Yield the pieces of a copy; those of padding are zeros.

    Raises:
        Declined: There are too many loops, or blocks of several sizes.
    """
    axes = range(len(source.shape))
    ranges = [
        list(_ranges(n, 0, *sorted((source.block_of(axis), target.block_of(axis)))))
        for axis, n in enumerate(source.shape)
    ]
    for parts in product(*ranges):
        ends = [
            side.first + sum(_place(side, axis, parts[axis][0]) for axis in axes)
            for side in (source, target)
        ]
        loops = [
            (n, _place(source, axis, step), _place(target, axis, step))
            for axis in axes
            for n, step in parts[axis][1]
        ]
        yield _checked(ends[0], ends[1], loops)
    for axis in target.axes:
        length, padded = target.shape[axis], target.padded[axis]
        if length < padded:
            others = [(target.padded[i], 0, target.strides[i]) for i in axes if i != axis]
            begin = target.first + _place(target, axis, length)
            yield _checked(None, begin, [*others, (padded - length, 0, 1)])


def _ranges(n: int, begin: int, small: int, large: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield ranges of indices: the first index, and the counts and steps of the loops."""
    decline_if(large % small, f"blocks of {small} and of {large}")
    if whole := n // large:
        yield begin, [(whole, large), (large // small, small), (small, 1)]
    begin, n = begin + whole * large, n % large
    if n >= small > 1:
        yield begin, [(n // small, small), (small, 1)]
        begin, n = begin + n // small * small, n % small
    if n:
        yield begin, [(n, 1)]


def _place(side: Arrangement, axis: int, index: int) -> int:
    """Return the distance of an index of an axis from the first."""
    block = side.block_of(axis)
    return index // block * side.strides[axis] + index % block


def _checked(source: int | None, target: int, loops: list[CopyLoop]) -> CopyPiece:
    from demitasse.backends.kernels.strided_copy import MOST_LOOPS, join_loops

    decline_if(len(join_loops(loops)) > MOST_LOOPS, f"a copy of more than {MOST_LOOPS} loops")
    return CopyPiece(source, target, loops)


class Primitive:
    """Prepared code with its arguments, which are bound to buffers before it runs.

    The library generates the code at the first run, because many prepared primitives never run.

    Args:
        uses: Role and memory descriptor of every argument, scratch memory aside.
    """

    def __init__(self, stream: Stream, description: Description, uses: Sequence[tuple[int, int]]):
        self._stream, library = stream, stream.library
        self._describe: Callable[[], Description] = lambda: description
        self.implementation = description.implementation
        self._handle = 0
        self.scratch = description.bytes_of(Query.SCRATCHPAD)
        roles = [(role, descriptor) for role, descriptor in uses if descriptor]
        if self.scratch:
            roles.append((Arg.SCRATCHPAD, description.descriptor(Query.SCRATCHPAD)))
            stream.scratchpad(self.scratch)
        self._places = {role: i for i, (role, _) in enumerate(roles)}
        self._memories = [stream.memory(descriptor) for _, descriptor in roles]
        self._uses = _Uses(stream, [role for role, _ in roles], self._memories)
        self._bound: list[np.ndarray | None] = [None] * len(roles)
        self._addresses = [0] * len(roles)
        self._count = len(roles)
        self._epoch = command_queue.ISSUED
        self._execute = library.dnnl_primitive_execute
        self._set = library.dnnl_memory_set_data_handle

    def forget(self, describe: Callable[[], Description]) -> None:
        """Release the description, some 20 KiB, until the code is generated.

        Args:
            describe: Returns the description again. It must not reference the primitive's owner.
        """
        self._describe = describe

    def place(self, role: int) -> int:
        """Return the index of an argument, to bind it with."""
        return self._places[role]

    def bind(self, place: int, buffer: np.ndarray) -> None:
        """Bind an argument to ``buffer``."""
        if self._bound[place] is not buffer:
            self.point(place, address(buffer))
            self._bound[place] = buffer

    def point(self, place: int, where: int) -> None:
        """Bind an argument to an address, which the caller keeps alive for the run."""
        self._bound[place] = None
        if self._addresses[place] != where:
            command_queue.wait(self._epoch)  # a queued call still uses the last address
            self._addresses[place] = 0  # unknown, should this be cut short in between
            check(self._set(self._memories[place], where))
            self._addresses[place] = where

    def bound(self, place: int) -> np.ndarray:
        """Return what an argument is bound to."""
        buffer = self._bound[place]
        if buffer is None:
            message = "an argument of a primitive was used before it was bound"
            raise DeviceError(message, code=ErrorCode.BAD_STATE, argument=place)
        return buffer

    def release(self) -> None:
        """Release all buffers, which would otherwise live as long as this primitive."""
        self._bound = [None] * self._count

    def run(self) -> None:
        """Compute now, or queue the call while calls are queued.

        Raises:
            DeviceError: The library refuses.
        """
        if self.scratch:
            self.bind(self._count - 1, self._stream.scratchpad(self.scratch))
        if not self._handle:
            self._write()
        self._epoch = command_queue.enqueue(
            self._execute,
            self._call_arguments(self._uses),
            (self, *self._bound),
            check,
            self._replay_arguments,
        )

    def _call_arguments(self, uses: _Uses) -> tuple[Any, ...]:
        return self._handle, self._stream.handle, self._count, uses.arguments

    def _replay_arguments(self) -> tuple[tuple[Any, ...], object]:
        """Return copies of the arguments at their present addresses, and their owner."""
        same = [self._stream.like(memory) for memory in self._memories]
        uses = _Uses(self._stream, self._uses.roles, same)
        for memory, where in zip(uses.memories, self._addresses, strict=True):
            check(self._set(memory, where))
        return self._call_arguments(uses), uses

    def _write(self) -> None:
        library = self._stream.library
        description = self._describe()
        handle = create(library.dnnl_primitive_create, description.handle)
        weakref.finalize(self, library.dnnl_primitive_destroy, handle).atexit = False
        self._handle = handle


class CopyPrimitive(Primitive):
    """A prepared copy by kernels of our own."""

    scratch = 0

    def __init__(self, description: CopyDescription, roles: Sequence[int]) -> None:
        self.implementation = description.implementation
        self._places = {role: place for place, role in enumerate(roles)}
        self._source, self._target = self._places[Arg.SRC], self._places[Arg.DST]
        self._bound: list[np.ndarray | None] = [None, None]
        self._count = 2
        self._description = description
        self._kernels: list[StridedCopy] = []

    def point(self, place: int, where: int) -> None:
        reach = self._description.reach[place == self._target]
        floats = (ctypes.c_float * reach).from_address(where)
        self._bound[place] = np.ctypeslib.as_array(floats)

    def bind(self, place: int, buffer: np.ndarray) -> None:
        self._bound[place] = buffer

    def run(self) -> None:
        from demitasse.backends.kernels.strided_copy import StridedCopy

        pieces = self._description.pieces
        if not self._kernels:
            tuning = self._description.tuning
            self._kernels = [StridedCopy(piece.loops, tuning) for piece in pieces]
        source, target = (self.bound(place).reshape(-1) for place in (self._source, self._target))
        for kernel, piece in zip(self._kernels, pieces, strict=True):
            read = _ZERO if piece.source is None else source[piece.source :]
            kernel(read, target[piece.target :])


_ZERO = np.zeros(1, np.float32)


class _Uses:
    """Arguments in the form that the library takes: memory objects, which point at buffers.

    Args:
        memories: Their memory objects, which belong to this from now on.
    """

    def __init__(self, stream: Stream, roles: Sequence[int], memories: list[int]) -> None:
        self.roles, self.memories = roles, memories
        self.arguments = (_Argument * len(roles))()
        for argument, role, memory in zip(self.arguments, roles, memories, strict=True):
            argument.role, argument.memory = role, memory
        weakref.finalize(self, _free_memories, stream.library, memories).atexit = False


def _free_memories(library: Any, memories: list[int]) -> None:
    for memory in memories:
        library.dnnl_memory_destroy(memory)


Function = tuple[int, float, float]
"""Algorithm, alpha and beta of an elementwise function."""


def make_attributes(
    library: Any,
    *,
    keep: float = 0.0,
    other: int | None = None,
    functions: Sequence[Function] = (),
    slopes: int | None = None,
) -> int:
    """Return attributes to make primitives with; scratch memory is our own.

    Post-operations, in their order: the target's old value times ``keep`` is added, then the array
    of descriptor ``other``; the ``functions`` follow. An argument has the slopes that multiply
    negative values; ``slopes`` is the mask of the axes by which they differ, 0 for one slope.
    """
    if library is None:
        return 0
    made = create(library.dnnl_primitive_attr_create)
    check(library.dnnl_primitive_attr_set_scratchpad_mode(made, USER_SCRATCHPAD))
    chain = create(library.dnnl_post_ops_create)
    if keep:
        check(library.dnnl_post_ops_append_sum(chain, keep, 0, 0))
    if other:
        check(library.dnnl_post_ops_append_binary(chain, Algorithm.ADD, other))
    for function in functions:
        check(library.dnnl_post_ops_append_eltwise(chain, *function))
    if slopes is not None:
        check(library.dnnl_post_ops_append_prelu(chain, slopes))
    check(library.dnnl_primitive_attr_set_post_ops(made, chain))
    check(library.dnnl_post_ops_destroy(chain))
    return made


@contextmanager
def lent_attributes(library: Any, **post_ops: Any) -> Iterator[int]:
    """Lend the attributes of :func:`make_attributes`, for primitives that are made at once."""
    made = make_attributes(library, **post_ops)
    try:
        yield made
    finally:
        if library is not None:
            library.dnnl_primitive_attr_destroy(made)


LAST_TAG = 200
BLOCK = 16
"""Channels of a block that the library's and our kernels for AVX-512 are made for."""

BLOCKS = (BLOCK, 8)


def candidates(engine: Engine, expected: Layout) -> Iterator[Layout]:
    """Yield layouts of a shape: the expected one, blocks of channels, channels last, C order."""
    shape, expected = expected.shape, engine.whole(expected)
    yield expected
    for block in BLOCKS:
        if shape[1] % block == 0:
            with suppress(Declined):
                layout = channel_blocks(engine, shape, block)
                if layout is not expected:
                    yield layout
    last = engine.innermost_layout(shape, 1)
    if last is not expected:
        yield last
    if not expected.plain:
        yield engine.plain(shape)


def in_some_layout(engine: Engine, expected: Layout, prepare: Callable[[Layout], None]) -> None:
    """Prepare in the first of the candidates in which the library has fast code."""
    for layout in candidates(engine, expected):
        with suppress(Declined):
            prepare(layout)
            return
    message = "sizes for which oneDNN has no fast code in any layout"
    raise Declined(message)


def channel_blocks(engine: Engine, shape: tuple[int, ...], block: int) -> Layout:
    """Return the layout whose innermost loop is a block of channels."""
    if engine.library is None:
        return blocked(None, shape, 1, block)
    return layout_with_tag(engine.library, shape, _tag(engine, len(shape), block))


@cache
def _tag(engine: Engine, axes: int, block: int) -> int:
    """Return the number of the format whose innermost loop is a block of channels; 0 for none.

    The numbers of formats are many and told apart by what they describe, so they are looked for.
    """
    shape = (2, 4 * block, *(3,) * (axes - 2))
    plane = 3 ** (axes - 2)
    steps = [(0, 2, 4 * block * plane), (1, 4, block * plane)]
    spatial = [(2 + i, 3, block * 3 ** (axes - 3 - i)) for i in range(axes - 2)]
    wanted = [*steps, *spatial, (1, block, 1)]
    for tag in range(2, LAST_TAG):
        with suppress(Declined):
            if list(layout_with_tag(engine.library, shape, tag).key[1]) == wanted:
                return tag
    return 0


class _OfThread(threading.local):
    scratchpad: np.ndarray | None = None


class Stream:
    """A stream of the library on this processor.

    Scratch memory belongs to the thread that runs, so nets in different threads do not meet.

    Attributes:
        grown: How often scratch memory was replaced by larger one, in any thread.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self.engine = self.handle = 0
        if library is not None:
            self.engine = create(library.dnnl_engine_create, CPU_ENGINE, 0)
            self.handle = create(library.dnnl_stream_create, self.engine, DEFAULT_STREAM)
        self.grown = 0
        self._own = _OfThread()

    def memory(self, descriptor: int) -> int:
        """Return a memory object without a buffer."""
        return create(self.library.dnnl_memory_create, descriptor, self.engine, None)

    def like(self, memory: int) -> int:
        """Return another memory object of the same descriptor, without a buffer."""
        descriptor = ctypes.c_void_p()
        check(self.library.dnnl_memory_get_memory_desc(memory, ctypes.byref(descriptor)))
        return self.memory(descriptor.value or 0)

    @property
    def nbytes(self) -> int:
        """Bytes of this thread's scratch memory."""
        return 0 if self._own.scratchpad is None else self._own.scratchpad.nbytes

    def scratchpad(self, size: int) -> np.ndarray:
        """Return this thread's scratch memory of at least ``size`` bytes."""
        own = self._own.scratchpad
        if own is None or own.nbytes < size:
            self.grown += own is not None
            own = self._own.scratchpad = aligned(-(-size // 4))
        return own
