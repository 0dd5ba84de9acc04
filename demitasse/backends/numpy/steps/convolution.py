"""Convolution as matrix products over columns."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.steps.windows import WindowStep
from demitasse.backends.step import Operand
from demitasse.backends.windows import ConvGeometry

__all__ = ["ConvStep"]


class ConvStep(WindowStep[ops.Conv]):
    """Bottom = image, top = map."""

    def geometry(self) -> ConvGeometry:
        return self.between(self.op.bottom, self.op.top)

    def forward(self) -> None:
        weight = self.weight.read()
        bias = None if self.bias is None else self.bias.read()
        for bottom, top in zip(self.at.bottom, self.at.top, strict=True):
            image, maps = bottom.read().reshape(self.image), top.buffer().reshape(self.maps)
            self.products.to_map(image, weight, bias, maps)

    def weight_gradient(self, bottom: Operand, top: Operand, out: np.ndarray) -> None:
        image, maps = bottom.read().reshape(self.image), top.read_diff().reshape(self.maps)
        self.products.weight_gradient(image, maps, out)

    def bottom_gradient(self, bottom: Operand, top: Operand) -> None:
        maps, image = top.read_diff().reshape(self.maps), bottom.diff_buffer().reshape(self.image)
        self.products.to_image(maps, self.weight.read(), image)
