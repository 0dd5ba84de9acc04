"""Convolutions on arrays, with numbers for everything that they take."""

import numpy as np
import pytest
from rectifiers import rectified
from stages import normal

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING
from demitasse.backends.kernels.igemm import plan_igemm
from demitasse.backends.kernels.igemm_convolution import (
    filter_gradient,
    igemm_forward,
    igemm_input_gradient,
)
from demitasse.backends.kernels.images import Images

__all__ = ["WINDOWS", "Case", "Numbers", "convolution", "expect_close", "scratch", "windows"]

WINDOWS = {
    "pixels": {},
    "pixels with strides": {"stride": (2, 2)},
    "3x3": {"kernel": (3, 3), "pad": (1, 1)},
    "3x3 with strides": {"kernel": (3, 3), "pad": (1, 1), "stride": (2, 2)},
    "strides beyond windows": {"kernel": (2, 1), "stride": (3, 2)},
    "5x2, dilated": {"kernel": (5, 2), "pad": (4, 0), "dilation": (2, 3), "stride": (1, 2)},
    "far beyond the image": {"kernel": (3, 3), "pad": (5, 4), "stride": (2, 1)},
    "groups": {"kernel": (3, 3), "pad": (1, 1), "group": 3},
    "pixels in groups": {"group": 2},
}  # fmt: skip


def convolution(n, c, m, size, **changes):
    how = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1}
    how |= changes
    top = [
        (length + 2 * pad - gap * (taps - 1) - 1) // step + 1
        for length, taps, step, pad, gap in zip(
            size, how["kernel"], how["stride"], how["pad"], how["dilation"], strict=True
        )
    ]
    return ops.Conv(
        dtype="float32", bottom=(n, c, *size), top=(n, m, *top), axis=1, bias=True, **how
    )


class Numbers:
    """Images with their channels last and a gap between pixels, which stays NaN."""

    def __init__(self, values, gap=0):
        n, c, h, w = values.shape
        column = c + gap
        self.images = Images(values.shape, h * w * column, w * column, column)
        self.memory = aligned(n * h * w * column)
        self.memory[:] = np.nan
        self.values[...] = values

    @property
    def values(self):
        n, c, h, w = self.images.shape
        return self.memory.reshape(n, h, w, -1)[..., :c].transpose(0, 3, 1, 2)

    def expect_gaps(self):
        c = self.images.shape[1]
        assert np.isnan(self.memory.reshape(-1, self.images.column_stride)[:, c:]).all()


class Case:
    """A convolution with numbers for everything that it takes."""

    def __init__(self, n, c, m, size, gap=0, **changes):
        self.op = op = convolution(n, c, m, size, **changes)
        self.x, self.y = Numbers(normal(*op.bottom), gap), Numbers(np.full(op.top, np.nan), gap)
        self.weights = normal(m, c // op.group, *op.kernel, seed=1)
        self.offsets, self.dy = normal(m, seed=4), Numbers(normal(*op.top, seed=5), gap)
        self.added = None

    def add(self):
        gap = self.y.images.column_stride - self.op.top[1]
        self.added = Numbers(normal(*self.op.top, seed=6), gap)

    def plan(self, tuning):
        return plan_igemm(self.op, self.op.bottom, self.op.top, tuning)

    def forward(self, tuning, then=NOTHING):
        adds = self.added is not None
        ends = self.x.images, self.y.images
        run = igemm_forward(self.plan(tuning), *ends, then, adds=adds)
        run.update(self.weights.reshape(-1))
        added = None if self.added is None else self.added.memory
        run(self.x.memory, self.y.memory, self.offsets, added, scratch(run))
        self.y.expect_gaps()
        return self.y.values.copy()

    def input_gradient(self, tuning, gap=3, offsets=None):
        """Return the gradient; ``offsets`` of its channels are added, as in a deconvolution."""
        dx = Numbers(np.full(self.op.bottom, np.nan), gap)
        run = igemm_input_gradient(self.plan(tuning), dx.images, self.dy.images)
        run.update(self.weights.reshape(-1))
        run(self.dy.memory, dx.memory, offsets, None, scratch(run))
        dx.expect_gaps()
        return dx.values.copy()

    def filter_gradient(self, tuning, *, bias=True):
        ends = self.x.images, self.dy.images
        run = filter_gradient(self.plan(tuning), *ends, self.op.kernel, bias=bias)
        memory, group = aligned(self.weights.size), self.op.group
        memory[:] = np.nan
        offsets = np.full(len(self.offsets), np.nan, np.float32) if bias else None
        run(self.x.memory, self.dy.memory, memory, offsets, scratch(run))
        shape = group, len(self.weights) // group, *self.weights.shape[1:]
        strides = [4 * stride for stride in run.strides]
        found = np.lib.stride_tricks.as_strided(memory, shape, strides)
        return found.reshape(self.weights.shape), offsets

    def taps(self, read):
        """Yield each tap, and the values that it reads. Shape: (N, C, OH, OW)."""
        op = self.op
        x = read(self.x.values).astype(float)
        (top, left), (h, w) = op.pad, op.top[2:]
        room = [(0, 0), (0, 0), (top, top + op.stride[0]), (left, left + op.stride[1])]
        padded = np.pad(x, room)
        for i, j in np.ndindex(*op.kernel):
            rows = op.dilation[0] * i + op.stride[0] * np.arange(h)
            columns = op.dilation[1] * j + op.stride[1] * np.arange(w)
            yield (i, j), (rows, columns), padded[:, :, rows[:, None], columns]

    def by_group(self, array, axis):
        return np.split(array.astype(float), self.op.group, axis)

    def wanted(self, then=NOTHING, read=np.asarray):
        """Return the outputs; windows and filters are rounded by ``read``."""
        weights = read(self.weights)
        y = sum(
            np.concatenate(
                [
                    np.einsum("mc,nchw->nmhw", w, x)
                    for w, x in zip(
                        self.by_group(weights[..., i, j], 0),
                        self.by_group(part, 1),
                        strict=True,
                    )
                ],
                axis=1,
            )
            for (i, j), _, part in self.taps(read)
        )
        added = 0 if self.added is None else self.added.values
        return rectified(then, y + self.offsets[:, None, None] + added)

    def wanted_gradients(self):
        op, dy = self.op, self.by_group(self.dy.values, 1)
        (top, left), (h, w) = op.pad, op.bottom[2:]
        dx = np.zeros((*op.bottom[:2], h + 2 * top + op.stride[0], w + 2 * left + op.stride[1]))
        dw = np.zeros(self.weights.shape)
        for (i, j), (rows, columns), part in self.taps(np.asarray):
            xs, ws = self.by_group(part, 1), self.by_group(self.weights[..., i, j], 0)
            dw[..., i, j] = np.concatenate(
                [np.einsum("nmhw,nchw->mc", d, x) for d, x in zip(dy, xs, strict=True)]
            )
            dx[:, :, rows[:, None], columns] += np.concatenate(
                [np.einsum("nmhw,mc->nchw", d, w) for d, w in zip(dy, ws, strict=True)], axis=1
            )
        return dx[:, :, top : top + h, left : left + w], dw, np.sum(self.dy.values, (0, 2, 3))

    def expect_all_passes(self, tuning):
        """Compare the output and all gradients with those of the definition."""
        expect_close(self.forward(tuning), self.wanted())
        dx, dw, db = self.wanted_gradients()
        expect_close(self.input_gradient(tuning), dx)
        for got, want in zip(self.filter_gradient(tuning), (dw, db), strict=True):
            expect_close(got, want)


def scratch(run):
    memory = aligned(run.scratch_size)
    memory[:] = np.nan
    return memory


def expect_close(got, want, sums=None):
    """Compare results; ``sums`` are what a rectifier may have made smaller."""
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 5e-6 * max(1, np.abs(want if sums is None else sums).max())


def windows(names=WINDOWS):
    return pytest.mark.parametrize("windows", [WINDOWS[name] for name in names], ids=list(names))
