"""The three products of convolution, by the library that the engine has."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.convolutions import Convolution, Result
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.step import Declined
from demitasse.backends.storage import array_dtype
from demitasse.backends.windows import ConvGeometry

__all__ = ["LibraryCorrelation"]


class LibraryCorrelation:
    """Cross-correlation by matrix products, for the requested gradients.

    Args:
        engine: Prepares and runs them.
        geometry: Image, map and window.
        dtype: Of all arrays.
        wanted: Which products.
        bias: Whether a bias is added to the map.

    Raises:
        Declined: The library lacks one of them.

    Shapes: as ``Correlation`` says.
    """

    def __init__(
        self,
        engine: Engine,
        geometry: ConvGeometry,
        dtype: str,
        wanted: Collection[Result],
        *,
        bias: bool,
    ) -> None:
        self.engine, self.dtype = engine, dtype
        plain: dict[Result, Convolution] = {
            result: Convolution(result, geometry, dtype) for result in wanted
        }
        self._adds_bias = False
        """True if the library adds the bias, too."""
        self._prepared = {result: engine.prepare_convolution(one) for result, one in plain.items()}
        if bias and "maps" in wanted:
            self._append_bias(Convolution("maps", geometry, dtype, bias=True))
        maps, plane = geometry.maps, geometry.map_plane
        count = geometry.n * maps * plane
        self._add_bias = engine.packs("conv", "add_bias", dtype, count, maps, plane)
        self._weights = maps * geometry.height
        self._sum = engine.packs("elementwise", "weighted_sum", dtype, self._weights, 1.0, 1.0)
        for result in wanted:
            self._scratch(result)  # so that a pass allocates nothing

    @property
    def map_code(self) -> str:
        """Name of the code that computes the map."""
        return self._prepared["maps"].code

    @property
    def image_code(self) -> str:
        """Name of the code that computes the image."""
        return self._prepared["image"].code

    def backward_code(self, results: Collection[Result]) -> str:
        """Return what computes these products."""
        return ", ".join(dict.fromkeys(self._prepared[result].code for result in results)) or "none"

    def forward(self, image: Array, weight: Array, bias: Array | None, maps: Array) -> None:
        """Compute the map of an image."""
        workspace, _ = self._scratch("maps")
        appended = bias if self._adds_bias else None
        self._prepared["maps"].run(image, weight, maps, appended, workspace)
        if bias is not None and not self._adds_bias:
            self._add_bias(maps, bias)

    def backward(
        self,
        maps: Array,
        weight: Array,
        *,
        image: Array | None = None,
        total: Array | None = None,
        spread: Array | None = None,
    ) -> None:
        """Compute the products that begin with a map, as ``Correlation.backward`` does."""
        if total is not None:
            workspace, fresh = self._scratch("weight")
            self._prepared["weight"].run(image, fresh, maps, None, workspace)
            self._sum(fresh, total, total)
        if spread is not None:
            workspace, _ = self._scratch("image")
            self._prepared["image"].run(spread, weight, maps, None, workspace)

    def _append_bias(self, convolution: Convolution) -> None:
        """Let the library add the bias, where it does that fast."""
        try:
            self._prepared["maps"] = self.engine.prepare_convolution(convolution)
        except Declined:
            return
        self._adds_bias = True

    def _scratch(self, result: Result) -> tuple[Array, Array]:
        """Return the workspace of a product, and memory for a gradient of the weight."""
        weights = (
            self._weights * np.dtype(array_dtype(self.dtype)).itemsize if result == "weight" else 0
        )
        fresh, workspace = self.engine.scratch("uint8", weights, self._prepared[result].workspace)
        return workspace, fresh.view(array_dtype(self.dtype))
