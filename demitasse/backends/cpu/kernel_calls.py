"""Calls of kernels with their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import numpy as np

from demitasse.backends.cpu.arguments import Argument, Derived, DerivedArg, GradArg, Source
from demitasse.backends.cpu.copies import LayoutCopy
from demitasse.backends.cpu.engine import Engine, thread_count
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.elementwise import MOST, Chain, Elementwise
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.structs import CompiledKernel, kernels_of
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import LayoutUse, decline_if
from demitasse.backends.storage import Stored


def kernel_tuning(engine: Engine, lowering: str = "", storage: Stored = "float") -> Tuning:
    """Return the tuning of our kernels, by the settings and the storage of a net's values."""
    tuning = engine.tuning.as_set(thread_count(), storage)
    tuning.require(lowering)
    return tuning


def _nothing() -> None:
    """Return the array of an absent argument."""


class KernelCall:
    """A kernel with an argument for each array that it takes.

    Args:
        kernel: A function of these arrays, and of scratch memory if its ``scratch_size`` is not 0.
            Its ``nbytes`` are the bytes of its own memory.
        arguments: None for an absent array.
        code: Name of the code, of a kernel without one; "" to have none.
    """

    def __init__(
        self, engine: Engine, kernel: Callable[..., None], *arguments: Argument | None,
        code: str | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.kernel = engine, kernel
        self.code: str = getattr(kernel, "code", "") if code is None else code
        self._arrays = [_nothing if one is None else one.array for one in arguments]
        self.arguments = [*dict.fromkeys(one for one in arguments if one is not None)]
        self._gradients = [one for one in self.arguments if isinstance(one, GradArg)]
        for argument in self.arguments:
            argument.engine = engine

    @property
    def workspace(self) -> int:
        """Bytes of the kernel's memory and of copied arguments."""
        held: int = getattr(self.kernel, "nbytes", 0)
        return held + sum(argument.copied for argument in self.arguments)

    def kernels(self) -> list[CompiledKernel]:
        """Return the kernels of the call, without those of copied arguments."""
        kernel = self.kernel.kernel if isinstance(self.kernel, PackedKernel) else self.kernel
        derived = [one.make for one in self.arguments if isinstance(one, DerivedArg)]
        return kernels_of([kernel, *derived])

    @property
    def layout_uses(self) -> list[LayoutUse]:
        """Layouts of the blobs that the call writes, and preferred layouts of those it reads."""
        uses = (argument.layout_use for argument in self.arguments)
        return [use for use in uses if use is not None]

    def __call__(self) -> None:
        """Run the kernel."""
        self.engine.begin_call()
        arrays = [array() for array in self._arrays]
        if size := getattr(self.kernel, "scratch_size", 0):
            arrays.append(self.engine.call_scratch(size))
        self.kernel(*arrays)
        for gradient in self._gradients:
            gradient.done()


class PackedKernel:
    """A kernel with copies of parameters in its own order, which are renewed after each change.

    The kernel is made at the first run, because fused calls replace some of the prepared calls.

    Args:
        make: Returns the kernel.
        takes: Parameter that a method of the kernel takes, by the method's name; None for none.
    """

    def __init__(self, make: Callable[[], Any], **takes: Source | None) -> None:
        self._make = make
        self._kernel: Any = None
        self._takes = {name: source for name, source in takes.items() if source is not None}

    @property
    def kernel(self) -> Any:
        """The kernel."""
        # not a cached_property, whose lock in Python 3.11 would stay locked in a forked child
        if self._kernel is None:
            self._kernel = self._make()
        return self._kernel

    @cached_property
    def _derived(self) -> list[Derived]:
        recorded: Sequence[str] = getattr(self.kernel, "recorded", ())
        derived = []
        for name, source in self._takes.items():
            take: Callable[..., None] = attrgetter(name)(self.kernel)
            make = take if name in recorded else partial(call_recorder.call, take)
            derived.append(Derived(make, source))
        return derived

    @property
    def scratch_size(self) -> int:
        """Elements of scratch memory for a call."""
        size: int = getattr(self.kernel, "scratch_size", 0)
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of the kernel's memory and of copied parameters."""
        held: int = getattr(self._kernel, "nbytes", 0)
        return held + sum(source.copied for source in self._takes.values())

    def __call__(self, *arrays: np.ndarray | None) -> None:
        """Run the kernel with the present parameters."""
        for one in self._derived:
            one.follow()
        self.kernel(*arrays)


def row_sum(size: int, rows: int, channels: int) -> Callable[..., None]:
    """Return the gradient of a bias: sums of ``rows`` rows at a time, and the sum of these."""

    def add_up(dy: np.ndarray, bias: np.ndarray) -> None:
        each = dy.reshape(-1)[:size].reshape(-1, rows, channels)
        np.add.reduce(np.add.reduce(each, axis=1), axis=0, out=bias[:channels])

    return partial(call_recorder.call, add_up)


def copy_call(
    engine: Engine, source: Argument, target: Argument, here: Layout | None = None,
    there: Layout | None = None,
) -> KernelCall:  # fmt: skip
    """Return a copy from one layout to another, by default those of the arguments.

    Raises:
        Declined: There are too many loops.
    """
    ends = here or source.layout, there or target.layout
    return KernelCall(engine, LayoutCopy(*ends, kernel_tuning(engine)), source, target)


def elementwise_call(
    engine: Engine, chain: Chain, sources: Sequence[Argument], *targets: Argument
) -> KernelCall:
    """Return a call of functions of every element."""
    decline_if(len(sources) > MOST, f"{len(sources)} arrays; our kernels read up to {MOST}")
    bf16 = tuple(one.layout.bf16 for one in (*sources, *targets))
    count = targets[0].layout.size * (2 if bf16[len(sources)] else 1)
    kernel = Elementwise(chain, len(sources), count, kernel_tuning(engine), bf16)
    return KernelCall(engine, kernel, *sources, *targets)
