"""Kernels on guarded memory: every operand, scratch and struct lies against inaccessible pages.

``pytest --guard=behind`` runs kernels on copies of their arrays that end where an inaccessible page
begins, ``--guard=before`` on copies that begin where one ends. A kernel that reads or writes past
an array ends its process with SIGSEGV. Scratch and outputs are poisoned before the call. Afterwards
the kernel's results go back to the arrays.

A call runs at once, and is not recorded for replay: the copies live no longer than the call.
"""

import ctypes
import mmap
from contextlib import contextmanager

import numpy as np

from demitasse.backends.kernels.fused_optimizer import FusedOptimizer
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.linker import protect
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    Output,
    Scratch,
    addresses,
)
from demitasse.backends.updates import Piece

__all__ = ["SIDES", "GuardedMemory", "call_guarded", "guarded_calls"]

SIDES = ("before", "behind")

PAGE = mmap.PAGESIZE
PROT_NONE = 0

POISON = 0x7FADBEEF
"""Bits of a signalling NaN: arithmetic changes them, so that they stay only where nothing wrote."""


class GuardedMemory:
    """A copy of a range of memory against an inaccessible page.

    Args:
        begin: Address of the first byte.
        end: Address behind the last one.
        side: Where the copy touches the inaccessible page: ``before`` or ``behind`` it.

    Attributes:
        shift: Bytes from an address in the range to the same byte of the copy.
    """

    def __init__(self, begin, end, side):
        size = end - begin
        pages = -(-size // PAGE) * PAGE
        self._map = mmap.mmap(-1, pages + 2 * PAGE)
        self._view = np.frombuffer(self._map, np.uint8)
        start = self._view.ctypes.data
        for page in (start, start + PAGE + pages):
            protect(page, PAGE, PROT_NONE)
        first = PAGE if side == "before" else PAGE + pages - size
        self._bytes = self._view[first : first + size]
        self._original = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(begin))
        self._bytes[...] = self._original
        self.shift = start + first - begin
        self._poisoned = None

    def poison(self):
        """Fill the copy with :data:`POISON`."""
        words = self._bytes[: self._bytes.size // 4 * 4].view(np.uint32)
        words[...] = POISON
        self._bytes[words.nbytes :] = POISON & 0xFF
        self._poisoned = self._bytes.copy()

    def write_back(self):
        """Copy what the kernel has written to the original."""
        changed = self._bytes != self._original  # parts of an array may be read-only
        if self._poisoned is not None:
            changed &= np.repeat(_differs(self._bytes, self._poisoned), 4)[: changed.size]
        if changed.any():
            np.copyto(self._original, self._bytes, where=changed)


def _differs(one, other):
    """Return for each four bytes whether any differs."""
    unequal = np.zeros(-(-one.size // 4) * 4, bool)
    unequal[: one.size] = one != other
    return unequal.reshape(-1, 4).any(axis=1)


def byte_range(array):
    """Return the first address of an array's elements and the one behind the last."""
    return np.lib.array_utils.byte_bounds(array)


def merged(ranges):
    """Return the ranges of memory, with those that overlap joined."""
    joined = []
    for begin, end in sorted(ranges):
        if joined and begin < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return joined


class GuardedCopies:
    """Guarded copies of arrays; arrays that overlap share one.

    Args:
        arrays: The arrays.
        side: Of the inaccessible page.
    """

    def __init__(self, arrays, side):
        ranges = merged(byte_range(array) for array in arrays if array.size)
        self._memories = [(begin, end, GuardedMemory(begin, end, side)) for begin, end in ranges]

    def address(self, array):
        """Return where the copy of an array's first element is."""
        at = array.__array_interface__["data"][0]
        for begin, end, memory in self._memories:
            if begin <= at < end:
                return at + memory.shift
        return at

    def poison(self, array):
        """Fill the copy of an array with what no kernel may read."""
        for begin, end, memory in self._memories:
            if (begin, end) == byte_range(array):
                memory.poison()

    def view(self, array):
        """Return the copy as an array."""
        kind = ctypes.c_uint8 * array.nbytes
        found = np.frombuffer(kind.from_address(self.address(array)), array.dtype)
        return found.reshape(array.shape)

    def write_back(self):
        """Copy everything that was written to the arrays."""
        for _, _, memory in self._memories:
            memory.write_back()


def run_guarded(arguments, kernels, threads, each, side, *, poisons=True):
    """Run a kernel, or several, as ``Arguments.run`` does, on guarded copies of their memory."""
    given = {**arguments.values.flat, **each}
    kinds = arguments.values.kinds
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    first_stage = all(
        value == 0 for name, value in given.items() if name.rpartition(".")[2] == "first_stage"
    )
    copies = GuardedCopies(arrays.values(), side)
    for name, array in arrays.items():
        others = [other for key, other in arrays.items() if key != name]
        written = issubclass(kinds[name], Scratch) and first_stage
        written = written or issubclass(kinds[name], Output)
        if poisons and written and not any(np.may_share_memory(array, other) for other in others):
            copies.poison(array)
    words = np.array(
        [
            copies.address(value) if isinstance(value, np.ndarray) else (value or 0)
            for value in given.values()
        ],
        np.int64,
    )
    struct = GuardedCopies([words], side)
    for kernel in addresses(kernels):
        call_recorder.run_kernel(kernel, struct.address(words), threads)
    call_recorder.mark_incomplete()  # a replay would need the copies
    copies.write_back()


def call_guarded(function, arguments, side):
    """Call a function of compiled code on guarded copies of the arrays among its arguments."""
    copies = GuardedCopies([one for one in arguments if isinstance(one, np.ndarray)], side)
    function(*(copies.address(one) if isinstance(one, np.ndarray) else one for one in arguments))
    copies.write_back()


@contextmanager
def guarded_calls(monkeypatch, side, *, poisons=True):
    """Run every kernel that is called in the block on guarded memory, poisoned or not."""
    checked_run, update = Arguments.run, FusedOptimizer.__call__

    def run(self, kernels, threads, each=None, needs=None):
        each = each or {}
        if each.keys() != {name for name, v in self.values.flat.items() if v is RUNTIME} or any(
            issubclass(self.values.kinds[name], Address)
            and not isinstance(value, np.ndarray | None)
            for name, value in each.items()
        ):
            checked_run(self, kernels, threads, each, needs)  # raises
        run_guarded(self, kernels, threads, each, side, poisons=poisons)

    def guarded_update(self, pieces, *numbers):
        copies = GuardedCopies([a for p in pieces for a in (p.data, p.diff, *p.history)], side)
        view = copies.view
        update(
            self,
            [
                Piece(p.update, view(p.data), view(p.diff), [view(one) for one in p.history])
                for p in pieces
            ],
            *numbers,
        )
        copies.write_back()

    with monkeypatch.context() as patch:
        patch.setattr(Arguments, "run", run)
        patch.setattr(FusedOptimizer, "__call__", guarded_update)
        yield
