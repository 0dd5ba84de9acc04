"""ROI pooling: calls of its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends.onednn.arguments import InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.regions import Bins

if TYPE_CHECKING:
    from demitasse.backends.kernels.roi_pooling import RegionMaxima, RegionMeans

    Regions = RegionMaxima | RegionMeans


class RegionCall(KernelCall):
    """A kernel that pools the bins of regions.

    Args:
        engine: The engine.
        source: The map.
        target: The results, in C order.
        kernel: The kernel.

    Attributes:
        bins: Those of the regions, to be given before each call.
    """

    bins: Bins

    def __init__(
        self, engine: Engine, source: InputArg, target: OutputArg, kernel: Regions
    ) -> None:
        self._source, self._target, self._kernel = source, target, kernel
        super().__init__(engine, (source, target), kernel.code)

    def __call__(self) -> None:
        self._kernel(self._source.array(), self.bins, self._target.array())
