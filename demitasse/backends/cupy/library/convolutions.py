"""Interface of a convolution library.

An image, a weight and a map belong together: each is computed from the other two. A convolution
computes the map forward, and the gradients of weight and image backward; a deconvolution computes
the image forward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from demitasse.backends.arrays import Array
from demitasse.backends.windows import ConvGeometry, Shape
from demitasse.core.config import settings

Result = Literal["maps", "image", "weight"]
"""Computed tensor: output, input gradient or filter gradient."""


@dataclass(frozen=True)
class Convolution:
    """One of the three products, for arrays of known shapes; ``result`` is overwritten.

    Arrays of "half" and "bfloat16" have a bias in float32. ``bias`` and ``relu`` follow a map. With
    ``last``, images, maps and weights have channels last.

    Shapes: image (n, C, *spatial), maps (n, M, *positions), weight (M, C / group, *kernel),
        bias (M,).
    """

    result: Result
    geometry: ConvGeometry
    dtype: str
    bias: bool = False
    relu: bool = False
    last: bool = False

    @property
    def shapes(self) -> dict[Result, Shape]:
        """Shapes of image, weight and map."""
        g = self.geometry
        return {
            "image": (g.n, g.channels, *g.spatial),
            "weight": (g.maps, g.channels // g.group, *g.window.kernel),
            "maps": (g.n, g.maps, *g.positions),
        }


def rounds_to_tf32() -> bool:
    """Return whether float32 convolutions may round their inputs to TF32."""
    return bool(settings.get_often("tf32") != "off")


Rival = Callable[[Array, Array, Array], None]
"""Queues the same product by other code; called with the image, the weight and the maps."""
