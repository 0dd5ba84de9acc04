"""Tuning parameters: kernel selection and block sizes; the schedule of a convolution."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from demitasse.backends import ops
from demitasse.backends.kernels.language import status
from demitasse.backends.kernels.language.target import has_amx, has_bf16
from demitasse.backends.step import decline_if
from demitasse.backends.storage import Stored
from demitasse.core.config import settings

NARROW = 8
"""Floats of the narrowest vectors that kernels are made for."""

LOWERINGS = {
    "amx": "convolution of tiles of bfloat16",
    "depthwise": "depthwise convolution",
    "few_classes": "softmax of few classes",
    "few_inputs": "direct convolution of few input channels",
    "few_outputs": "convolution to few output channels",
    "few_rows": "inner products of few rows",
    "grouped": "convolution of groups of few channels",
    "igemm": "convolutions without a kernel of their own; without it, numpy's",
    "norm": "BatchNorm by the batch's statistics",
    "overlap_add": "deconvolution of overlapping windows",
    "separable": "a depthwise convolution together with the 1x1 convolution after it",
    "transposed": "gradients of convolutions to few output channels",
    "winograd": "Winograd's convolution",
}
"""Lowerings of the cpu backend that replace other fast code, by name."""


@dataclass(frozen=True)
class Tuning:
    """Target processor of the kernels, and rules for their choice.

    Attributes:
        width: Floats of a vector, 4, 8 or 16; 0 if no kernel can be compiled.
        threads: Threads of a convolution.
        stack_bytes: Transformed tiles per block of a thread; they stay in its cache.
        shared_stack_bytes: The same per thread, if all threads share the tiles: for filters that
            fit into no cache.
        fewest_tiles: Least number of tiles of a block.
        shared_filter_bytes: Size of transformed filters from which on all threads share tiles.
        buffer_bytes: Outputs of a depthwise convolution that are stored for the following pointwise
            convolution; they stay in a core's second cache.
        bf16: Whether convolutions and inner products multiply pairs of bfloat16.
        amx: Whether they multiply tiles of bfloat16, by AMX.
        without: Names of lowerings that are switched off; see ``LOWERINGS``.
        always: Names of lowerings that run wherever they are supported, whatever they cost.
    """

    width: int
    threads: int = 1
    stack_bytes: int = 1 << 20
    shared_stack_bytes: int = 4 << 20
    fewest_tiles: int = 24
    shared_filter_bytes: int = 8 << 20
    buffer_bytes: int = 128 << 10
    bf16: bool = False
    amx: bool = False
    without: frozenset[str] = frozenset()
    always: frozenset[str] = frozenset()

    @property
    def instructions(self) -> str:
        """Name of the processor's instructions for vectors of this width."""
        return {4: "neon", 16: "avx512"}.get(self.width, "avx2")

    @property
    def product_instructions(self) -> str:
        """Name of the instructions that multiply."""
        return "amx_bf16" if self.amx else self.instructions + "_bf16" * self.bf16

    @property
    def rounds(self) -> bool:
        """True if products are in bfloat16."""
        return self.bf16 or self.amx

    def for_channels(self, channels: int) -> Tuning:
        """Return the tuning with vectors no wider than so many channels, if there are such."""
        narrow = NARROW <= channels < self.width
        return replace(self, width=NARROW) if narrow else self

    def imbalance(self, count: int) -> float:
        """Return the load of the thread with most of ``count`` items, relative to the mean."""
        return math.ceil(count / self.threads) * self.threads / count

    def require(self, lowering: str) -> None:
        """Decline a lowering that is switched off, or any if no kernels can be compiled.

        Raises:
            Declined: It is off.
        """
        decline_if(lowering in self.without, f"the lowering {lowering} is off")
        decline_if(not self.width, "no kernels are compiled at run time")

    def as_set(self, threads: int, storage: Stored = "float") -> Tuning:
        """Return this tuning for some threads, changed by the settings ``jit`` and ``winograd``.

        Kernels multiply in bfloat16 for a net that is stored so, if the processor can: by AMX where
        it has tiles.
        """
        off = frozenset() if settings.get_often("winograd") else {"winograd"}
        width = self.width if status().ready else 0
        rounds = storage == "bfloat16" and has_bf16(width)
        amx = rounds and has_amx(width) and "amx" not in self.without
        return replace(
            self, width=width, threads=threads, bf16=rounds and not amx, amx=amx,
            without=self.without | off,
        )  # fmt: skip


class TunedKernel:
    """A kernel of one kind, or its schedule.

    Attributes:
        kernel: Name of the kind.
        rounds: Whether products are in bfloat16 if the tuning says so.
        tuning: The kernel's vectors and threads, and how much they work on at a time.
    """

    kernel: ClassVar[str]
    rounds: ClassVar[bool] = False
    tuning: Tuning

    @property
    def width(self) -> int:
        """Floats of a vector."""
        return self.tuning.width

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        tuning = self.tuning
        instructions = tuning.product_instructions if self.rounds else tuning.instructions
        return f"{self.kernel} llvm:{instructions}"


class Depth(NamedTuple):
    """The third axis of a convolution, whose planes are images.

    The channels of a window's planes are those of an image.

    Attributes:
        taps: Planes of a window.
        size, output: Planes of an item of the input and of the output.
        pad: Planes of zeros before the input.
    """

    taps: int = 1
    size: int = 1
    output: int = 1
    pad: int = 0

    @property
    def backward(self) -> Depth:
        """The depth of the convolution that is the gradient of the input."""
        return Depth(self.taps, self.output, self.size, self.taps - 1 - self.pad)


FLAT = Depth()
"""The depth of a convolution over two axes."""


@dataclass(frozen=True)
class ConvSchedule(TunedKernel):
    """A convolution over two axes.

    Attributes:
        op: The convolution.
        x: The images' shape, (N, C, H, W).
        y: The outputs' shape, (N, M, OH, OW).
    """

    op: ops.Conv
    x: tuple[int, ...]
    y: tuple[int, ...]
    tuning: Tuning
