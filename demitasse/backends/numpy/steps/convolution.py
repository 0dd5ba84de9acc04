"""Convolution and Deconvolution as matrix products over columns."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Backend, BlobLike, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.numpy.geometry import Geometry
from demitasse.backends.numpy.gradients import add_gradient
from demitasse.backends.numpy.products import Products

__all__ = ["ConvStep", "DeconvStep"]


class _WindowStep(Step):
    """What both directions share.

    Args:
        op: The operation.
        at: Its blobs.
        geometry: Image, map and window.
    """

    def __init__(self, op: ops.Conv, at: Operands, geometry: Geometry) -> None:
        self.op, self.at, self.g = op, at, geometry
        self.products = Products(geometry, op.dtype)
        self.weight = at.params[0]
        self.bias = at.params[1] if op.bias else None
        self.image = (geometry.n, geometry.image_channels, *geometry.spatial)
        self.maps = (geometry.n, geometry.map_channels, *geometry.places)

    @property
    def workspace(self) -> int:  # type: ignore[override]
        return self.products.workspace

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

    def backward(self) -> None:
        wanted, dtype = self.at.param_propagate_down, self.op.dtype
        for bottom, top, down in zip(
            self.at.bottom, self.at.top, self.at.propagate_down, strict=True
        ):
            if self.bias is not None and wanted[1]:
                add_gradient(self.bias, dtype, partial(self._sum, top))
            if wanted[0]:
                add_gradient(self.weight, dtype, partial(self.weight_gradient, bottom, top))
            if down:
                self.bottom_gradient(bottom, top)

    def weight_gradient(self, bottom: BlobLike, top: BlobLike, out: np.ndarray) -> None:
        """Write the weight's gradient into ``out``."""
        raise NotImplementedError

    def bottom_gradient(self, bottom: BlobLike, top: BlobLike) -> None:
        """Overwrite the bottom's gradient."""
        raise NotImplementedError

    def _sum(self, top: BlobLike, out: np.ndarray) -> None:
        """Write the bias's gradient into ``out``: the sum over images and places."""
        dy = top.read_diff()
        per_plane = np.add.reduce(dy.reshape(self.g.n * out.size, -1), axis=1)
        np.add.reduce(per_plane.reshape(self.g.n, out.size), axis=0, out=out)


class ConvStep(_WindowStep):
    """Bottom = image, top = map."""

    def forward(self) -> None:
        weight = self.weight.read()
        bias = None if self.bias is None else self.bias.read()
        for bottom, top in zip(self.at.bottom, self.at.top, strict=True):
            image, maps = bottom.read().reshape(self.image), top.buffer().reshape(self.maps)
            self.products.to_map(image, weight, bias, maps)

    def weight_gradient(self, bottom: BlobLike, top: BlobLike, out: np.ndarray) -> None:
        image, maps = bottom.read().reshape(self.image), top.read_diff().reshape(self.maps)
        self.products.weight_gradient(image, maps, out)

    def bottom_gradient(self, bottom: BlobLike, top: BlobLike) -> None:
        maps, image = top.read_diff().reshape(self.maps), bottom.diff_buffer().reshape(self.image)
        self.products.to_image(maps, self.weight.read(), image)


class DeconvStep(_WindowStep):
    """Bottom = map, top = image."""

    def forward(self) -> None:
        weight = self.weight.read()
        for bottom, top in zip(self.at.bottom, self.at.top, strict=True):
            maps, image = bottom.read().reshape(self.maps), top.buffer().reshape(self.image)
            self.products.to_image(maps, weight, image)
            if self.bias is not None:
                flat = image.reshape(self.g.n, self.g.image_channels, -1)
                flat += self.bias.read()[:, np.newaxis]

    def weight_gradient(self, bottom: BlobLike, top: BlobLike, out: np.ndarray) -> None:
        maps, image = bottom.read().reshape(self.maps), top.read_diff().reshape(self.image)
        self.products.weight_gradient(image, maps, out)

    def bottom_gradient(self, bottom: BlobLike, top: BlobLike) -> None:
        image, maps = top.read_diff().reshape(self.image), bottom.diff_buffer().reshape(self.maps)
        self.products.to_map(image, self.weight.read(), None, maps)


@NumpyBackend.lowers(ops.Conv)
def conv(backend: Backend, op: ops.Conv, at: Operands) -> Step | None:
    """Convolution over at least one spatial axis."""
    del backend
    geometry = _geometry(op, image=op.bottom, maps=op.top)
    return ConvStep(op, at, geometry) if geometry is not None and not at.in_place else None


@NumpyBackend.lowers(ops.Deconv)
def deconv(backend: Backend, op: ops.Deconv, at: Operands) -> Step | None:
    """Transposed convolution over at least one spatial axis."""
    del backend
    geometry = _geometry(op, image=op.top, maps=op.bottom)
    return DeconvStep(op, at, geometry) if geometry is not None and not at.in_place else None


def _geometry(op: ops.Conv, image: ops.Shape, maps: ops.Shape) -> Geometry | None:
    """Return the sizes, or None where the portable code does as well."""
    n = math.prod(image[: op.axis])
    if not op.kernel or n == 0:
        return None
    return Geometry(
        n=n,
        group=op.group,
        image_channels=image[op.axis],
        map_channels=maps[op.axis],
        spatial=image[op.axis + 1 :],
        places=maps[op.axis + 1 :],
        kernel=op.kernel,
        stride=op.stride,
        pad=op.pad,
        dilation=op.dilation,
    )
