"""Convolution and Deconvolution by im2col and matrix products."""

from abc import abstractmethod
from functools import partial
from typing import TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.products import Products
from demitasse.backends.numpy.step import NEEDS_BOTTOM, Engine, HostStep
from demitasse.backends.step import Operand, Operands, decline_if, decline_in_place
from demitasse.backends.windows import ConvGeometry

O = TypeVar("O", bound=ops.Conv)  # noqa: E741 - the type of the operation


class WindowStep(HostStep[O]):
    """An image and a map, one of which is the bottom, and a window between them."""

    uses_shared_scratch = True

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        geometry = ConvGeometry.of(op)
        decline_if(not geometry.n, "an empty bottom")
        decline_if(not op.kernel, "no spatial axes")
        self.g, self.products = geometry, Products(engine, geometry, op.dtype)
        self.weight = at.params[0]
        self.bias = at.params[1] if op.bias else None
        self.image = (geometry.n, geometry.channels, *geometry.spatial)
        self.maps = (geometry.n, geometry.maps, *geometry.positions)

    @property
    def workspace(self) -> int:
        return self.products.columns.workspace

    def backward(self) -> None:
        wanted = self.at.param_propagate_down
        for bottom, top, down in zip(
            self.at.bottom, self.at.top, self.at.propagate_down, strict=True
        ):
            if self.bias is not None and wanted[1]:
                self.add_gradient(self.bias, partial(self._sum, top))
            if wanted[0]:
                self.add_gradient(self.weight, partial(self.weight_gradient, bottom, top))
            if down:
                self.bottom_gradient(bottom, top)

    def weight_gradient(self, bottom: Operand, top: Operand, out: np.ndarray) -> None:
        """Write the weight's gradient into ``out``."""
        x, dy = bottom.read(), top.read_diff()
        image, maps = (dy, x) if isinstance(self.op, ops.Deconv) else (x, dy)
        self.products.weight_gradient(image.reshape(self.image), maps.reshape(self.maps), out)

    @abstractmethod
    def bottom_gradient(self, bottom: Operand, top: Operand) -> None:
        """Overwrite the bottom's gradient."""

    def _sum(self, top: Operand, out: np.ndarray) -> None:
        """Write the bias's gradient into ``out``: the sum over images and positions."""
        dy = top.read_diff()
        per_plane = np.add.reduce(dy.reshape(self.g.n * out.size, -1), axis=1)
        np.add.reduce(per_plane.reshape(self.g.n, out.size), axis=0, out=out)


class ConvStep(WindowStep[ops.Conv]):
    """Bottom = image, top = map."""

    def forward(self) -> None:
        weight = self.weight.read()
        bias = None if self.bias is None else self.bias.read()
        for bottom, top in zip(self.at.bottom, self.at.top, strict=True):
            image, maps = bottom.read().reshape(self.image), top.buffer().reshape(self.maps)
            self.products.to_map(image, weight, bias, maps)

    def bottom_gradient(self, bottom: Operand, top: Operand) -> None:
        maps, image = top.read_diff().reshape(self.maps), bottom.diff_buffer().reshape(self.image)
        self.products.to_image(maps, self.weight.read(), image)


class DeconvStep(WindowStep[ops.Deconv]):
    """Bottom = map, top = image."""

    def forward(self) -> None:
        weight = self.weight.read()
        for bottom, top in zip(self.at.bottom, self.at.top, strict=True):
            maps, image = bottom.read().reshape(self.maps), top.buffer().reshape(self.image)
            self.products.to_image(maps, weight, image)
            if self.bias is not None:
                flat = image.reshape(self.g.n, self.g.channels, -1)
                flat += self.bias.read()[:, np.newaxis]

    def bottom_gradient(self, bottom: Operand, top: Operand) -> None:
        image, maps = top.read_diff().reshape(self.image), bottom.diff_buffer().reshape(self.maps)
        self.products.to_map(image, self.weight.read(), None, maps)
