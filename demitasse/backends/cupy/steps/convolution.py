"""Convolution and Deconvolution."""

import logging
import math
from functools import cache
from typing import TypeVar

from demitasse.backends import ops
from demitasse.backends.cupy.correlation import Correlation, LibraryCorrelation
from demitasse.backends.cupy.layout import reads_channels_last
from demitasse.backends.cupy.library.convolutions import Result, rounds_to_tf32
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.cupy.sums import ChannelSums
from demitasse.backends.step import Declined, Operands, decline_in_place
from demitasse.backends.storage import ARRAYS
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

    cuDNN computes the products for which it is faster; ``declined`` is the reason for none.
    """

    narrow_params = (0,)

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        self.transposed = isinstance(op, ops.Deconv)
        """True if the bottom is the map, and the top the image."""
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        if self.dtype == "float32" and rounds_to_tf32():
            _log_rounding()
        samples, axis = math.prod(op.bottom[: op.axis]), op.axis
        if not self.last:
            self.products = self._products()
        channels, plane = op.top[axis], math.prod(op.top[axis + 1 :])
        sizes, reach = (samples, channels, plane), samples * channels * plane
        self.add_channel_sums = ChannelSums(engine, self.dtype, sizes, last=self.last)
        places = 1 if self.last else plane
        self.add_bias = engine.vectorized("conv", "add_bias", self.dtype, reach, channels, places)

    def takes_last(self, engine: Engine, op: O, at: Operands) -> bool:
        """Return whether cuDNN's tensor cores compute all products with channels last.

        Convolutions with windows begin with channels last; others follow the Step before. The
        prepared products become those of the Step.
        """
        rounds = self.dtype in ARRAYS or (self.dtype == "float32" and rounds_to_tf32())
        grouped = op.group != 1
        if not settings.get("channels_last") or op.axis != 1 or not rounds:
            return False
        if (grouped and self.dtype not in ARRAYS) or at.in_place:
            return False
        if (grouped or math.prod(op.kernel) == 1) and not reads_channels_last(at):
            return False
        try:
            self.products = self._library(engine, op, at, last=True)
        except Declined:
            return False
        return True

    @property
    def code(self) -> str:
        products = self.products
        return (products.image_code if self.transposed else products.map_code) + self.order

    @property
    def backward_code(self) -> str:
        return self.products.backward_code(self._gradients(self.at)) + self.order

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

    def _gradients(self, at: Operands) -> list[Result]:
        """Return the products of the backward pass."""
        wanted = list[Result]()
        if at.backward and at.param_propagate_down[0]:
            wanted.append("weight")
        if at.backward and any(at.propagate_down):
            wanted.append("maps" if self.transposed else "image")
        return wanted

    def _products(self) -> Correlation | LibraryCorrelation:
        try:
            return self._library(self.engine, self.op, self.at, last=False)
        except Declined as declined:
            self.declined = (str(declined),)
            return Correlation(self.engine, ConvGeometry.of(self.op), self.dtype)

    def _library(self, engine: Engine, op: O, at: Operands, *, last: bool) -> LibraryCorrelation:
        computes: Result = "image" if self.transposed else "maps"
        wanted, bias = [computes, *self._gradients(at)], op.bias and not self.transposed
        geometry = ConvGeometry.of(op)
        return LibraryCorrelation(engine, geometry, self.dtype, wanted, bias=bias, last=last)


class ConvStep(WindowStep[ops.Conv]):
    """The bottom is the image, the top is the map."""


class DeconvStep(WindowStep[ops.Deconv]):
    """The bottom is the map, the top is the image."""
