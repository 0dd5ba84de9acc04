"""Deconvolution as matrix products over columns, which are added up to the image."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.steps.windows import WindowStep
from demitasse.backends.step import Operand
from demitasse.backends.windows import ConvGeometry

__all__ = ["DeconvStep"]


class DeconvStep(WindowStep[ops.Deconv]):
    """Bottom = map, top = image."""

    def geometry(self) -> ConvGeometry:
        return self.between(self.op.top, self.op.bottom)

    def forward(self) -> None:
        weight = self.weight.read()
        for bottom, top in zip(self.at.bottom, self.at.top, strict=True):
            maps, image = bottom.read().reshape(self.maps), top.buffer().reshape(self.image)
            self.products.to_image(maps, weight, image)
            if self.bias is not None:
                flat = image.reshape(self.g.n, self.g.channels, -1)
                flat += self.bias.read()[:, np.newaxis]

    def weight_gradient(self, bottom: Operand, top: Operand, out: np.ndarray) -> None:
        maps, image = bottom.read().reshape(self.maps), top.read_diff().reshape(self.image)
        self.products.weight_gradient(image, maps, out)

    def bottom_gradient(self, bottom: Operand, top: Operand) -> None:
        image, maps = top.read_diff().reshape(self.image), bottom.diff_buffer().reshape(self.maps)
        self.products.to_map(image, self.weight.read(), None, maps)
