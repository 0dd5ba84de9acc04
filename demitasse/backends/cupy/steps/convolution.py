"""Convolution and Deconvolution."""

import logging
import math
from functools import cache
from typing import ClassVar, TypeVar

from demitasse.backends import ops
from demitasse.backends.cupy.correlation import Correlation, LibraryCorrelation
from demitasse.backends.cupy.library.convolutions import Result, rounds_to_tf32
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.cupy.sums import ChannelSums
from demitasse.backends.step import Declined, Operands, decline_in_place
from demitasse.backends.windows import ConvGeometry
from demitasse.core.config import settings

O = TypeVar("O", bound=ops.Conv)  # noqa: E741 - the type of the operation

log = logging.getLogger(__name__)


@cache
def _log_rounding() -> None:
    log.info(
        "convolutions round float32 inputs to TF32 where the GPU can (setting tf32: %s); off gives "
        "Caffe's numbers",
        settings.get("tf32"),
    )


class WindowStep(GpuStep[O]):
    """An image and a map, one of which is the bottom; several bottoms, one weight, one bias.

    The engine's library computes the products that it is fast at; ``declined`` is the reason where
    it computes none.
    """

    narrow_params = (0,)
    transposed: ClassVar[bool] = False
    """True if the bottom is the map, and the top the image."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        if self.dtype == "float32" and rounds_to_tf32():
            _log_rounding()
        samples, axis = math.prod(op.bottom[: op.axis]), op.axis
        self.products = self._products()
        channels, plane = op.top[axis], math.prod(op.top[axis + 1 :])
        reach = samples * channels * plane
        self.add_channel_sums = ChannelSums(engine, self.dtype, (samples, channels, plane))
        self.add_bias = engine.vectorized("conv", "add_bias", self.dtype, reach, channels, plane)

    @property
    def code(self) -> str:
        return self.products.image_code if self.transposed else self.products.map_code

    @property
    def backward_code(self) -> str:
        return self.products.backward_code(self._gradients())

    def geometry(self) -> ConvGeometry:
        """Return the sizes of image, map and window."""
        op = self.op
        shapes = (op.top, op.bottom) if self.transposed else (op.bottom, op.top)
        return ConvGeometry.between(op, *shapes)

    def forward(self) -> None:
        at = self.at
        weight = at.params[0].read()
        bias = at.params[1].read() if self.op.bias else None
        for bottom, top in zip(at.bottom, at.top, strict=True):
            x, y = bottom.read(), top.buffer()
            if not self.transposed:
                self.products.forward(x, weight, bias, y)
                continue
            self.products.backward(x, weight, spread=y)
            if bias is not None:
                self.add_bias(y, bias)

    def backward(self) -> None:
        at = self.at
        for bottom, top, wanted in zip(at.bottom, at.top, at.propagate_down, strict=True):
            x, weight, dy = bottom.read(), at.params[0].read(), top.read_diff()
            wanted_weight = at.param_propagate_down[0] and bottom.count
            dw = at.params[0].diff_total() if wanted_weight else None
            dx = bottom.diff_buffer() if wanted else None
            if not self.transposed:
                self.products.backward(dy, weight, image=x, total=dw, spread=dx)
            else:
                self.products.backward(x, weight, image=dy, total=dw)
                if dx is not None:
                    self.products.forward(dy, weight, None, dx)
            if self.op.bias and at.param_propagate_down[1]:
                self.add_channel_sums(dy, at.params[1].diff_total())

    def _gradients(self) -> list[Result]:
        """Return the products of the backward pass."""
        at, wanted = self.at, list[Result]()
        if at.backward and at.param_propagate_down[0]:
            wanted.append("weight")
        if at.backward and any(at.propagate_down):
            wanted.append("maps" if self.transposed else "image")
        return wanted

    def _products(self) -> Correlation | LibraryCorrelation:
        op, geometry = self.op, self.geometry()
        computes: Result = "image" if self.transposed else "maps"
        wanted = [computes, *self._gradients()]
        try:
            bias = op.bias and not self.transposed
            return LibraryCorrelation(self.engine, geometry, self.dtype, wanted, bias=bias)
        except Declined as declined:
            self.declined = (str(declined),)
            return Correlation(self.engine, geometry, self.dtype)


class ConvStep(WindowStep[ops.Conv]):
    """The bottom is the image, the top is the map."""


class DeconvStep(WindowStep[ops.Deconv]):
    """The bottom is the map, the top is the image."""

    transposed = True
