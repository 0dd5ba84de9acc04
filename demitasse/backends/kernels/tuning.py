"""Tuning parameters: kernel selection and block sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from demitasse.backends.kernels.language import status
from demitasse.core.config import settings

__all__ = ["Pays", "Tuning"]

Pays = Literal["auto", "always", "never"]
"""Choice of a kernel: if a cost model says that it pays, always if supported, or never."""


@dataclass(frozen=True)
class Tuning:
    """Target processor of the kernels, and rules for their choice.

    Attributes:
        width: Floats of a vector, 8 or 16; 0 if no kernel can be compiled.
        threads: Threads of a convolution.
        winograd: Choice of Winograd's convolution.
        direct: Choice of direct convolution of few input channels.
        depthwise: Choice of depthwise convolution.
        narrow: Choice of convolution to few output channels.
        grouped: Choice of convolution of small groups.
        pointwise: Choice of pointwise convolution after a normalisation.
        separable: Choice of fusing a depthwise with the following pointwise convolution.
        stack_bytes: Transformed tiles per block of a thread; they stay in its cache.
        shared_stack_bytes: The same per thread, if all threads share the tiles: for filters that
            fit into no cache.
        fewest_tiles: Least number of tiles of a block.
        shared_filter_bytes: Size of transformed filters from which on all threads share tiles.
        on_the_fly_filter_bytes: Size from which on filters are transformed on the fly.
        on_the_fly_bytes: Filters that a thread transforms on the fly at a time, in a core's second
            cache.
        copy_bytes: Rows of an image that direct convolution copies at a time, in a core's first
            cache.
        pooled_bytes: Outputs of direct convolution that are pooled at a time; they stay in the
            second.
        group_filter_bytes: Filters of small groups that go over rows at a time; they stay in a
            core's second cache.
        pixel_filter_bytes: Filters up to which pixels are normalised on the way; they stay in a
            core's second cache.
        noted_bytes: Outputs of a depthwise convolution that are stored for the following pointwise
            convolution; they stay in a core's second cache.
        cached_bytes: Images and outputs of a depthwise convolution, up to which most of what it
            reads is still in a cache.
    """

    width: int
    threads: int = 1
    winograd: Pays = "auto"
    direct: Pays = "auto"
    depthwise: Pays = "auto"
    narrow: Pays = "auto"
    grouped: Pays = "auto"
    pointwise: Pays = "auto"
    separable: Pays = "auto"
    stack_bytes: int = 1 << 20
    shared_stack_bytes: int = 4 << 20
    fewest_tiles: int = 24
    shared_filter_bytes: int = 8 << 20
    on_the_fly_filter_bytes: int = 3 << 20
    on_the_fly_bytes: int = 320 << 10
    copy_bytes: int = 32 << 10
    pooled_bytes: int = 160 << 10
    group_filter_bytes: int = 160 << 10
    pixel_filter_bytes: int = 384 << 10
    noted_bytes: int = 128 << 10
    cached_bytes: int = 4 << 20

    @property
    def instructions(self) -> str:
        """Name of the processor's instructions for vectors of this width."""
        return "avx512" if self.width > 8 else "avx2"

    def as_set(self, threads: int) -> Tuning:
        """Return this tuning, changed by the settings ``jit`` and ``winograd``.

        Args:
            threads: Number of threads in the settings.
        """
        return replace(
            self,
            width=self.width if status().ready else 0,
            threads=threads,
            winograd=self.winograd if settings.get_often("winograd") else "never",
        )
