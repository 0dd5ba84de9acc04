"""Steps of the ``jax`` backend: convolutions by XLA's convolution.

The portable code multiplies columns (im2col), which XLA makes one kernel offset at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.step import Lowerings, Operands, Step, decline_if, decline_in_place
from demitasse.backends.windows import ConvGeometry, Window

__all__ = ["LOWERINGS"]

LEAD = 2
"""Axes before the spatial ones in pooling: images and channels."""

O = TypeVar("O", bound=ops.Conv)  # noqa: E741 - the type of the operation


def correlate(sizes: ConvGeometry, image: Array, weight: Array) -> Array:
    """Return maps. Shapes: (n, C, *spatial), (M, C/group, *kernel) -> (n, M, *positions)."""
    window, group = sizes.window, sizes.group
    canvas = window.canvas(sizes.spatial, sizes.positions)
    pads = [(p, c - n - p) for n, p, c in zip(sizes.spatial, window.pad, canvas, strict=True)]
    if group == sizes.channels == sizes.maps != 1:  # XLA has no fast code for single channels
        padded = jnp.pad(image, [(0, 0), (0, 0), *pads])
        everything, shape = slice(None), (-1, *(1 for _ in pads))
        taps = [
            padded[everything, everything, *window.reach(tap, sizes.positions)]
            * jnp.reshape(weight[everything, 0, *tap], shape)
            for tap in window.taps()
        ]
        return sum(taps[1:], start=taps[0])
    parts = zip(jnp.split(image, group, axis=1), jnp.split(weight, group), strict=True)
    maps = [
        lax.conv_general_dilated(one, filters, window.stride, pads, rhs_dilation=window.dilation)
        for one, filters in parts
    ]
    return jnp.concatenate(maps, axis=1)


@partial(jax.jit, static_argnums=0)
def to_map(sizes: ConvGeometry, image: Array, weight: Array) -> Array:
    """Return maps for blobs of any lead axes, as (n, M, *positions)."""
    shape = (sizes.n, sizes.channels, *sizes.spatial)
    return correlate(sizes, jnp.reshape(image, shape), weight)


@partial(jax.jit, static_argnums=0)
def to_image(sizes: ConvGeometry, maps: Array, weight: Array) -> Array:
    """Return the transposed convolution, as (n, C, *spatial)."""
    shape = (sizes.n, sizes.channels, *sizes.spatial)
    image = jax.ShapeDtypeStruct(shape, maps.dtype)
    maps = jnp.reshape(maps, (sizes.n, sizes.maps, *sizes.positions))
    [result] = jax.linear_transpose(lambda x: correlate(sizes, x, weight), image)(maps)
    return result


@partial(jax.jit, static_argnums=0)
def weight_gradient(sizes: ConvGeometry, image: Array, maps: Array) -> Array:
    """Return the gradient of the weight."""
    image = jnp.reshape(image, (sizes.n, sizes.channels, *sizes.spatial))
    maps = jnp.reshape(maps, (sizes.n, sizes.maps, *sizes.positions))
    shape = (sizes.maps, sizes.channels // sizes.group, *sizes.window.kernel)
    weight = jax.ShapeDtypeStruct(shape, maps.dtype)
    [result] = jax.linear_transpose(lambda w: correlate(sizes, image, w), weight)(maps)
    return result


class CorrelationStep(Step[None, O]):
    """An image and a map, one of which is the bottom; several bottoms, one weight, one bias."""

    code = "xla"
    replayable = backward_replayable = True
    transposed: ClassVar[bool] = False
    """True if the bottom is the map, and the top the image."""

    def __init__(self, engine: None, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, "the gradient needs the bottom")
        decline_if(op.is_pointwise, "a 1x1 convolution is a single product in portable code")
        self.sizes = ConvGeometry.of(op)

    def forward(self) -> None:
        at = self.at
        run = to_image if self.transposed else to_map
        for bottom, top in zip(at.bottom, at.top, strict=True):
            y = run(self.sizes, bottom.read(), at.params[0].read())
            if self.op.bias:
                bias = at.params[1].read()
                y = y + jnp.reshape(bias, (-1, *(1 for _ in self.op.kernel)))
            top.write(jnp.reshape(y, top.shape))

    def backward(self) -> None:
        at, sizes = self.at, self.sizes
        run = to_map if self.transposed else to_image
        for bottom, top, wanted in zip(at.bottom, at.top, at.propagate_down, strict=True):
            x, dy = bottom.read(), top.read_diff()
            if at.param_propagate_down[0]:
                image, maps = (dy, x) if self.transposed else (x, dy)
                at.params[0].add_diff(weight_gradient(sizes, image, maps))
            if self.op.bias and at.param_propagate_down[1]:
                by_channel = jnp.reshape(dy, (sizes.n, *self.op.top[self.op.axis :]))
                axes = [axis for axis in range(by_channel.ndim) if axis != 1]
                at.params[1].add_diff(jnp.sum(by_channel, axis=axes))
            if wanted:
                dx = run(sizes, dy, at.params[0].read())
                bottom.write_diff(jnp.reshape(dx, bottom.shape))


class ConvStep(CorrelationStep[ops.Conv]):
    """The bottom is the image, the top is the map."""


class DeconvStep(CorrelationStep[ops.Deconv]):
    """The bottom is the map, the top is the image."""

    transposed = True


# -- pooling -----------------------------------------------------------------------------------


def _window(op: ops.Pool) -> Window:
    return Window(op.kernel, op.stride, op.pad, (1,) * len(op.kernel), op.after)


def _padded(op: ops.Pool, image: Array, around: float = 0) -> Array:
    """Return images with a border, so that all windows lie within. Shape: (N, C, *canvas)."""
    spatial = op.bottom[LEAD:]
    canvas = _window(op).canvas(spatial, op.top[LEAD:])
    pads = [(p, c - n - p) for n, p, c in zip(spatial, op.pad, canvas, strict=True)]
    return jnp.pad(image, [(0, 0), (0, 0), *pads], constant_values=around)


def _divisors(op: ops.Pool) -> np.ndarray:
    sizes = _window(op).divisors(op.bottom[LEAD:], op.top[LEAD:], pads=op.counts_pads)
    return sizes.astype(op.dtype)


def _taps(op: ops.Pool, values: Array, axis: int) -> list[Array]:
    """Return the elements of all windows along a spatial axis, an array for each tap."""
    step, reach = op.stride[axis], (op.top[axis + LEAD] - 1) * op.stride[axis] + 1
    axis -= len(op.kernel)
    return [
        lax.slice_in_dim(values, tap, tap + reach, step, axis % values.ndim)
        for tap in range(op.kernel[axis])
    ]


@partial(jax.jit, static_argnums=0)
def largest(op: ops.Pool, image: Array) -> tuple[Array, Array]:
    """Return the largest elements, and their indices in the plane; -1 for none."""
    best = _padded(op, image, ops.LOWEST)
    index = jnp.zeros((), "int32")
    for size, canvas, pad in zip(op.bottom[LEAD:], best.shape[LEAD:], op.pad, strict=True):
        index = index[..., None] * size + jnp.arange(canvas, dtype="int32") - pad
    for axis in reversed(range(len(op.kernel))):
        taps = list(zip(_taps(op, best, axis), _taps(op, index, axis), strict=True))
        best, index = jnp.full_like(taps[0][0], ops.LOWEST), jnp.full_like(taps[0][1], -1)
        for seen, at in taps:
            best, index = jnp.where(seen > best, seen, best), jnp.where(seen > best, at, index)
    return best, index


@partial(jax.jit, static_argnums=0)
def largest_gradient(op: ops.Pool, index: Array, dy: Array) -> Array:
    """Return the sum of the gradients of the windows that chose an element."""
    spatial = op.bottom[LEAD:]
    plane = np.arange(math.prod(spatial), dtype=np.int32).reshape(spatial)

    def add(index: Array, dy: Array) -> Array:
        total = jnp.zeros(op.bottom, dy.dtype)
        for windows in product(*(_covering(op, axis) for axis in range(len(spatial)))):
            chosen, share = index, dy
            for window in windows:
                chosen, share = window.spread(chosen, -1), window.spread(share, 0)
            total = total + jnp.where(chosen == plane, share, 0)
        return total

    # XLA fuses the forward pass with these sums, and repeats it for each window, but not across
    # a branch
    always = jnp.sum(jnp.ravel(index)[:1]) >= -1
    return lax.cond(always, add, lambda index, dy: jnp.zeros(op.bottom, dy.dtype), index, dy)


@partial(jax.jit, static_argnums=0)
def mean(op: ops.Pool, image: Array) -> Array:
    """Return the means of windows."""
    total = _padded(op, image)
    for axis in range(len(op.kernel)):
        total = sum(_taps(op, total, axis))
    return total / _divisors(op)


@partial(jax.jit, static_argnums=0)
def mean_gradient(op: ops.Pool, dy: Array) -> Array:
    """Return the sum of the gradients of the windows that cover an element, each divided."""
    total = dy / _divisors(op)
    for axis in reversed(range(len(op.kernel))):
        parts = []
        for window in _covering(op, axis):
            shape = (-1, *(1 for _ in op.kernel[axis + 1 :]))
            covered = np.reshape(window.covers, shape)
            parts.append(jnp.where(covered, window.spread(total, 0), 0))
        total = sum(parts[1:], start=parts[0])
    return total


class Covering(NamedTuple):
    """One of the windows that cover each element along an axis.

    Attributes:
        spread: Returns the value of that window for each element, given the values of all windows
            and a value for none. Shapes: (..., positions, ...) -> (..., size, ...), or 1 for size.
        covers: True for elements that the window covers. Shape: (size,).
    """

    spread: Callable[[Array, float], Array]
    covers: np.ndarray


def _covering(op: ops.Pool, axis: int) -> list[Covering]:
    """Return as many windows along a spatial axis as cover an element at most."""
    size, out = op.bottom[axis + LEAD], op.top[axis + LEAD]
    kernel, stride, pad = op.kernel[axis], op.stride[axis], op.pad[axis]
    places = np.arange(size) + pad
    most = -(-kernel // stride)

    def covering(spread: Callable[..., Array], position: Any) -> Covering:
        tap = places - position * stride
        covers = (position >= 0) & (position < out) & (tap >= 0) & (tap < kernel)
        return Covering(spread, covers)

    def one(values: Array, around: float, position: int) -> Array:
        return lax.slice_in_dim(values, position, position + 1, axis=axis + LEAD)

    first, last = places[0] // stride, places[-1] // stride

    def earlier(values: Array, around: float, back: int) -> Array:
        """Return the value of the window ``back`` positions before the last that may cover."""
        pads = [(0, 0, 0)] * values.ndim
        pads[axis + LEAD] = (back - first, last - back - out + 1, 0)
        values = lax.pad(values, np.asarray(around, values.dtype), pads)
        values = jnp.repeat(values, stride, axis=axis + LEAD)
        begin = pad % stride
        return lax.slice_in_dim(values, begin, begin + size, axis=axis + LEAD)

    if out <= most:
        return [covering(partial(one, position=o), o) for o in range(out)]
    return [covering(partial(earlier, back=b), places // stride - b) for b in range(most)]


class PoolStep(Step[None, ops.Pool | ops.SpatialPyramidPool]):
    """The largest element of each window, or the mean; a pyramid has several levels."""

    code = "xla"
    replayable = backward_replayable = True

    def __init__(self, engine: None, op: ops.Pool | ops.SpatialPyramidPool, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.levels = (op,) if isinstance(op, ops.Pool) else op.levels
        drawn = any(level.method == "STOCHASTIC" for level in self.levels)
        decline_if(drawn, "STOCHASTIC; XLA's Step takes MAX and AVE")
        decline_in_place(at, "the gradient needs the bottom")

    def forward(self) -> None:
        at, x, parts = self.at, self.at.bottom[0].read(), []
        for number, level in enumerate(self.levels):
            if level.method == "AVE":
                parts.append(mean(level, x))
                continue
            best, index = largest(level, x)
            parts.append(best)
            if at.backward:
                at.saved(f"index {number}", level.top, "int32").write(index)
            if len(at.top) > 1:
                at.top[1].write(index.astype(x.dtype))
        rows = [jnp.reshape(y, (len(y), math.prod(y.shape[1:]))) for y in parts]
        at.top[0].write(jnp.reshape(jnp.concatenate(rows, axis=1), at.top[0].shape))

    def backward(self) -> None:
        at, parts = self.at, []
        if not at.propagate_down[0]:
            return
        sizes = [math.prod(level.top[1:]) for level in self.levels]
        rows = jnp.reshape(at.top[0].read_diff(), (at.top[0].shape[0], sum(sizes)))
        for number, level in enumerate(self.levels):
            first = sum(sizes[:number])
            dy = jnp.reshape(rows[:, first : first + sizes[number]], level.top)
            if level.method == "AVE":
                parts.append(mean_gradient(level, dy))
            else:
                index = at.saved(f"index {number}", level.top, "int32").read()
                parts.append(largest_gradient(level, index, dy))
        at.bottom[0].write_diff(sum(parts[1:], start=parts[0]))


LOWERINGS: Lowerings = {
    ops.Conv: (ConvStep,),
    ops.Deconv: (DeconvStep,),
    ops.Pool: (PoolStep,),
    ops.SpatialPyramidPool: (PoolStep,),
}
