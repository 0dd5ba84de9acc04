"""The layers whose geometry is easily got wrong, as loops over their definition.

Every function returns what the layer gives and, for a gradient of that, the gradients of what it
takes. Nothing here is clever: a window is a loop over places and taps. The rules are Caffe's.
"""

from itertools import pairwise, product

import numpy as np


class RefusedError(Exception):
    """Caffe would not make this layer."""


def grid(*sizes):
    return product(*(range(size) for size in sizes))


def contacts(image, places, window):
    """Yield (place, tap, pixel) wherever a tap of a window sees a pixel of the image."""
    for place in grid(*places):
        for tap in grid(*(one["kernel"] for one in window)):
            pixel = tuple(
                p * one["stride"] - one["pad"] + t * one["dilation"]
                for p, t, one in zip(place, tap, window, strict=True)
            )
            if all(0 <= at < size for at, size in zip(pixel, image, strict=True)):
                yield (slice(None), slice(None), *place), tap, (slice(None), slice(None), *pixel)


def pads(one):
    """The elements added before and after one axis."""
    return one["pad"], one.get("after", one["pad"])


def extent(one):
    return one["dilation"] * (one["kernel"] - 1) + 1


def some(sizes):
    if min(sizes, default=1) <= 0:
        raise RefusedError(sizes)
    return tuple(sizes)


def conv_places(image, window):
    """How many places a convolution has; C's division cuts towards zero."""
    pairs = zip(image, window, strict=True)
    return some([int((n + sum(pads(w)) - extent(w)) / w["stride"]) + 1 for n, w in pairs])


def deconv_size(places, window):
    pairs = zip(places, window, strict=True)
    return some([w["stride"] * (n - 1) + extent(w) - sum(pads(w)) for n, w in pairs])


def groups(weight, group):
    """Yield, for each group, its channels of the image, its channels of the map, its weights."""
    maps, channels = weight.shape[0] // group, weight.shape[1]
    for g in range(group):
        of_map = slice(g * maps, (g + 1) * maps)
        yield slice(g * channels, (g + 1) * channels), of_map, weight[of_map]


def convolution(x, weight, bias, window, group):
    """Return (N, M, *places), and a function of its gradient to those of x, weight and bias."""
    spatial = x.shape[2:]
    places = conv_places(spatial, window)
    y = np.zeros((len(x), len(weight), *places)) + bias.reshape(-1, *[1] * len(places))
    for place, tap, pixel in contacts(spatial, places, window):
        for below, above, w in groups(weight, group):
            y[place][:, above] += x[pixel][:, below] @ w[(..., *tap)].T

    def backward(dy):
        dx, dw = np.zeros_like(x), np.zeros_like(weight)
        for place, tap, pixel in contacts(spatial, places, window):
            for below, above, w in groups(weight, group):
                dx[pixel][:, below] += dy[place][:, above] @ w[(..., *tap)]
                dw[(above, slice(None), *tap)] += dy[place][:, above].T @ x[pixel][:, below]
        return dx, dw, dy.sum(axis=(0, *range(2, dy.ndim)))

    return y, backward


def deconvolution(x, weight, bias, window, group):
    """Return (N, M, *image), and a function of its gradient to those of x, weight and bias."""
    places = x.shape[2:]
    spatial = deconv_size(places, window)
    y = np.zeros((len(x), len(bias), *spatial)) + bias.reshape(-1, *[1] * len(places))
    for place, tap, pixel in contacts(spatial, places, window):
        for below, above, w in groups(weight, group):
            y[pixel][:, below] += x[place][:, above] @ w[(..., *tap)]

    def backward(dy):
        dx, dw = np.zeros_like(x), np.zeros_like(weight)
        for place, tap, pixel in contacts(spatial, places, window):
            for below, above, w in groups(weight, group):
                dx[place][:, above] += dy[pixel][:, below] @ w[(..., *tap)].T
                dw[(above, slice(None), *tap)] += x[place][:, above].T @ dy[pixel][:, below]
        return dx, dw, dy.sum(axis=(0, *range(2, dy.ndim)))

    return y, backward


def pool_places(image, window, ceil):
    """How many places pooling has: with pads, the last must begin on the image or its pad."""
    out = []
    for n, w in zip(image, window, strict=True):
        steps = (n + sum(pads(w)) - w["kernel"]) / w["stride"]
        out.append(int(np.ceil(steps) if ceil else np.floor(steps)) + 1)
    if any(sum(pads(w)) for w in window):
        for axis, (n, w) in enumerate(zip(image, window, strict=True)):
            if (out[axis] - 1) * w["stride"] >= n + w["pad"]:
                out[axis] -= 1
            if (out[axis] - 1) * w["stride"] >= n + w["pad"]:
                raise RefusedError(out)
    return some(out)


def pool_windows(image, places, window, counts_pads=True):
    """Yield, for each place, the pixels its window holds and what the mean is divided by."""
    for place in grid(*places):
        starts = [p * w["stride"] - w["pad"] for p, w in zip(place, window, strict=True)]
        ends = [
            min(start + w["kernel"], n + pads(w)[1])
            for start, n, w in zip(starts, image, window, strict=True)
        ]
        size = np.prod([end - start for start, end in zip(starts, ends, strict=True)])
        pixels = product(
            *(
                range(max(start, 0), min(end, n))
                for start, end, n in zip(starts, ends, image, strict=True)
            )
        )
        pixels = list(pixels)
        yield place, pixels, size if counts_pads else len(pixels)


def max_pooling(x, window, ceil):
    """Return (N, C, *places), the mask, and a function of the gradient to that of x."""
    spatial = x.shape[2:]
    places = pool_places(spatial, window, ceil)
    y = np.full((*x.shape[:2], *places), np.finfo(np.float32).min, np.float64)
    mask = np.full(y.shape, -1)
    for n, c in grid(*x.shape[:2]):
        for place, pixels, _ in pool_windows(spatial, places, window):
            for pixel in pixels:
                if x[(n, c, *pixel)] > y[(n, c, *place)]:
                    y[(n, c, *place)] = x[(n, c, *pixel)]
                    mask[(n, c, *place)] = np.ravel_multi_index(pixel, spatial)

    def backward(dy):
        dx = np.zeros_like(x)
        for n, c, *place in grid(*y.shape):
            if mask[(n, c, *place)] >= 0:
                dx[n, c].reshape(-1)[mask[(n, c, *place)]] += dy[(n, c, *place)]
        return dx

    return y, mask, backward


def average_pooling(x, window, ceil, counts_pads=True):
    """Return (N, C, *places), and a function of the gradient to that of x."""
    spatial = x.shape[2:]
    places = pool_places(spatial, window, ceil)
    y = np.zeros((*x.shape[:2], *places))
    for place, pixels, size in pool_windows(spatial, places, window, counts_pads):
        total = sum((x[(..., *pixel)] for pixel in pixels), np.zeros(x.shape[:2]))
        y[(..., *place)] = total / size if size else np.nan

    def backward(dy):
        dx = np.zeros_like(x)
        for place, pixels, size in pool_windows(spatial, places, window, counts_pads):
            for pixel in pixels:
                dx[(..., *pixel)] += dy[(..., *place)] / size
        return dx

    return y, backward


def axis_of(axis, axes):
    if not -axes <= axis < axes:
        raise RefusedError(axis)
    return axis % axes


def crop(x, like, axis, offsets):
    """Return the part of x, and a function of the gradient to that of x."""
    first = axis_of(axis, x.ndim)
    if len(offsets) > 1 and len(offsets) != x.ndim - first:
        raise RefusedError(offsets)
    offsets = list(offsets or [0])
    offsets = offsets * (x.ndim - first) if len(offsets) == 1 else offsets
    offsets = [0] * first + offsets
    shape = (*x.shape[:first], *like.shape[first:])
    for have, offset, want in zip(x.shape, offsets, shape, strict=True):
        if have - offset < want:
            raise RefusedError(have)
    y = np.zeros(shape)
    for at in grid(*shape):
        y[at] = x[tuple(i + offset for i, offset in zip(at, offsets, strict=True))]

    def backward(dy):
        dx = np.zeros_like(x)
        for at in grid(*shape):
            dx[tuple(i + offset for i, offset in zip(at, offsets, strict=True))] = dy[at]
        return dx

    return y, backward


def slices(x, axis, points, tops):
    """Return the parts of x along an axis."""
    axis = axis_of(axis, x.ndim)
    size = x.shape[axis]
    if points:
        ends = [0, *points, size]
        if len(points) != tops - 1 or sorted(set(ends)) != ends:
            raise RefusedError(points)
    else:
        if size % tops:
            raise RefusedError(size)
        ends = [size // tops * i for i in range(tops + 1)]
    parts = []
    for first, last in pairwise(ends):
        part = np.zeros((*x.shape[:axis], last - first, *x.shape[axis + 1 :]))
        for at in grid(*part.shape):
            part[at] = x[(*at[:axis], at[axis] + first, *at[axis + 1 :])]
        parts.append(part)
    return parts


def reshaped(shape, dims, axis, num_axes):
    """Return the shape that Reshape gives."""
    start = axis if axis >= 0 else len(shape) + axis + 1
    end = len(shape) if num_axes == -1 else start + num_axes
    if not 0 <= start <= len(shape) or num_axes < -1 or end > len(shape) or dims.count(-1) > 1:
        raise RefusedError(shape)
    out = list(shape[:start])
    for place, dim in enumerate(dims, start):
        if dim == 0 and place >= len(shape):
            raise RefusedError(dims)
        out.append(shape[place] if dim == 0 else dim)
    out += shape[end:]
    count = int(np.prod(shape))
    if -1 in out:
        rest = -int(np.prod(out))
        if not rest or count % rest:
            raise RefusedError(dims)
        out[out.index(-1)] = count // rest
    if int(np.prod(out)) != count:
        raise RefusedError(dims)
    return tuple(out)
