"""Tuning parameters: kernel selection and block sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from demitasse.backends.kernels.language import status
from demitasse.core.config import settings

__all__ = ["Pays", "Tuning"]

Pays = Literal["auto", "always", "never"]
"""True if a kernel is taken: where a model says that it pays, wherever it can be, or nowhere."""


@dataclass(frozen=True)
class Tuning:
    """For which processor kernels are made, and when they are taken.

    Attributes:
        width: Floats of a vector, 8 or 16; 0 where no kernels can be made.
        threads: How many work on a convolution.
        winograd: Whether convolutions go over tiles.
        direct: Whether those of few channels go by direct convolution.
        depthwise: Whether those of each channel by itself go by our own depthwise convolution.
        narrow: Whether those to few channels go by our own.
        grouped: Whether those of small groups of channels go by our own.
        pointwise: Whether those of single pixels, behind a normalisation, go by our own.
        separable: Whether depthwise ones run as one with those of single pixels behind them.
        stack_bytes: Transformed tiles that a thread works on at a time; they stay in its cache.
        shared_stack_bytes: The same, for each thread, where all work on the same tiles: for filters
            that no cache holds, and that are read each time.
        fewest_tiles: Tiles that are worked on at a time at least.
        shared_filter_bytes: Transformed filters from which on all threads work on the same tiles.
        unpacked_filter_bytes: Transformed filters from which on they are not kept.
        points_bytes: Of filters that are not kept, values at the points that a thread makes at a
            time; they stay in a core's second cache.
        copy_bytes: Rows of an image that direct convolution copies at a time; they stay in a
            core's first cache.
        pooled_bytes: Outputs of direct convolution that are pooled at a time; they stay in the
            second.
        group_filter_bytes: Filters of small groups that go over rows at a time; they stay in a
            core's second cache.
        pixel_filter_bytes: Filters up to which pixels are normalised on the way; they stay in a
            core's second cache.
        noted_bytes: Outputs of a depthwise convolution that are noted for those of single pixels
            behind it; they stay in a core's second cache.
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
    unpacked_filter_bytes: int = 3 << 20
    points_bytes: int = 320 << 10
    copy_bytes: int = 32 << 10
    pooled_bytes: int = 160 << 10
    group_filter_bytes: int = 160 << 10
    pixel_filter_bytes: int = 384 << 10
    noted_bytes: int = 128 << 10
    cached_bytes: int = 4 << 20

    @property
    def instructions(self) -> str:
        """Name of the processor's instructions that vectors of this width are for."""
        return "avx512" if self.width > 8 else "avx2"

    def as_set(self, threads: int) -> Tuning:
        """Return this as the settings ``jit`` and ``winograd`` change it.

        Args:
            threads: How many the settings say.
        """
        return replace(
            self,
            width=self.width if status().ready else 0,
            threads=threads,
            winograd=self.winograd if settings.get_often("winograd") else "never",
        )
