"""Bits of the same kernel at other widths of vectors, and on another architecture.

Sizes are the same at every width, channels are whole vectors at all of them. With
``KERNEL_DIGESTS`` names a folder of digests; `nox -s aarch64` has the machine write them first,
and compares those of emulation.
"""

import hashlib
import math
import os
from pathlib import Path

import numpy as np
import pytest
from bandings import banding
from bins import some_bins
from recurrent_weights import backward_weights, forward_weights
from stages import WIDTHS, called, in_memory, where
from tilings import tiling

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import elementwise
from demitasse.backends.kernels.channel_affine import channel_factors, gates
from demitasse.backends.kernels.channel_affine import gate_gradient as gradient_of_gates
from demitasse.backends.kernels.col2im import Col2Im
from demitasse.backends.kernels.depthwise import (
    DepthwiseConvolution,
    DepthwiseGradients,
    plan_depthwise,
)
from demitasse.backends.kernels.epilogue import RELU
from demitasse.backends.kernels.few_inputs import DirectConvolution, DirectGradient
from demitasse.backends.kernels.few_outputs import NarrowConvolution, plan_few_outputs
from demitasse.backends.kernels.few_planes import FewPlanesConvolution, FewPlanesSchedule
from demitasse.backends.kernels.few_rows import FewRows
from demitasse.backends.kernels.fused_optimizer import FusedOptimizer
from demitasse.backends.kernels.igemm import plan_igemm
from demitasse.backends.kernels.igemm_convolution import (
    FilterGradient,
    igemm_forward,
    igemm_input_gradient,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.lrn import LocalResponse
from demitasse.backends.kernels.norm import Normalization, NormalizationGradient, PlaneNorm
from demitasse.backends.kernels.pooling import Pooling
from demitasse.backends.kernels.recurrence import Recurrence
from demitasse.backends.kernels.resize import Interpolation
from demitasse.backends.kernels.roi_pooling import (
    RegionMaxima,
    RegionMaximaGradient,
    RegionMeanGradient,
    RegionMeans,
)
from demitasse.backends.kernels.row_selection import RowSelection, RowSums
from demitasse.backends.kernels.separable import SeparableConvolution, plan_separable
from demitasse.backends.kernels.softmax import Softmax
from demitasse.backends.kernels.tuning import LOWERINGS, Tuning
from demitasse.backends.kernels.winograd.convolution import (
    WinogradConvolution,
    WinogradGradient,
    product_kernel,
)
from demitasse.backends.kernels.winograd.filters import filter_transform
from demitasse.backends.updates import KERNEL_FORMULAS, Piece, Update

C, M, SIZE = 32, 48, (9, 30)

RECORDED = os.environ.get("KERNEL_DIGESTS")


def numbers(*shape, seed=0):
    """Return random numbers whose bits no library's rounding decides."""
    values = np.random.default_rng(seed).integers(-(1 << 20), 1 << 20, shape)
    return (values / (1 << 19)).astype(np.float32)


def last(shape):
    return Images.channels_last(shape)


def tuned(width):
    return Tuning(width, always=frozenset(LOWERINGS))


def conv(c, m, *, kernel=(3, 3), group=1):
    pad = kernel[0] // 2, kernel[1] // 2
    x, y = (2, c, *SIZE), (2, m, *SIZE)
    return ops.Conv("float32", x, y, 1, kernel, (1, 1), pad, (1, 1), group=group, bias=True)


def operands(op):
    """Return the input in memory, weights, offsets, and memory for the output."""
    weights = numbers(op.top[1], op.bottom[1] // op.group, *op.kernel, seed=1).reshape(-1)
    x = in_memory(numbers(*op.bottom), last(op.bottom))
    return x, weights, numbers(op.top[1], seed=2), aligned(math.prod(op.top))


def winograd(kernel):
    def run(width):
        op = conv(C, M, kernel=kernel)
        of, (x, weights, offsets, y) = tiling(op.bottom, M, kernel, width, op.pad), operands(op)
        positions = np.zeros(of.filter_size, np.float32)
        filter_transform(of)(positions, weights.reshape(M, C, *kernel))
        convolve = WinogradConvolution(of, last(op.bottom), last(op.top), RELU)
        convolve.take_offsets(offsets)
        convolve(x, y, positions, aligned(convolve.scratch_size))
        return y

    return run


def winograd_gradient(width):
    op = conv(C, M)
    of = tiling(op.bottom, M, op.kernel, width, op.pad)
    x, dy = (in_memory(numbers(*shape), last(shape)) for shape in (op.bottom, op.top))
    weight, bias = np.zeros((M, C, *op.kernel), np.float32), np.zeros(M, np.float32)
    run = WinogradGradient(of, last(op.bottom), last(op.top))
    run(x, dy, weight, bias, aligned(run.sums_size), aligned(run.scratch_size))
    return weight, bias


def few_inputs(width):
    of = banding((2, 3, *SIZE), M, width)
    convolve = DirectConvolution(of, last(of.y), RELU)
    convolve.update(numbers(M * of.taps, seed=1))
    y = aligned(math.prod(of.y))
    convolve(numbers(2, 3, *SIZE), y, numbers(M, seed=2))
    return y


def few_planes(width):
    of = banding((2, 3, *SIZE), 3, width)
    convolve = FewPlanesConvolution(FewPlanesSchedule(of.op, of.x, of.y, of.tuning), RELU)
    convolve.update(numbers(3 * of.taps, seed=1))
    y = aligned(math.prod(of.y))
    convolve(numbers(2, 3, *SIZE), y, numbers(3, seed=2))
    return y


def few_inputs_gradient(width):
    of = banding((2, 3, *SIZE), M, width)
    weight, bias = np.zeros(M * of.taps, np.float32), np.zeros(M, np.float32)
    run = DirectGradient(of, last(of.y), bias=True)
    dy = in_memory(numbers(*of.y, seed=1), last(of.y))
    run(numbers(2, 3, *SIZE), dy, weight, bias)
    return weight, bias


def windowed(plan, make, **shape):
    """Return a convolution over windows, as all kinds of them run."""

    def run(width):
        op = conv(**shape)
        x, weights, offsets, y = operands(op)
        convolve = make(plan(op, op.bottom, op.top, tuned(width)), op)
        convolve.update(weights)
        convolve(x, y, offsets)
        return y

    return run


def depthwise_gradients(width):
    op = conv(C, C, group=C)
    x, weights, _, dx = operands(op)
    dy = in_memory(numbers(*op.top), last(op.top))
    weight, bias = aligned(weights.size), aligned(C)
    images = last(op.bottom), last(op.top), last(op.bottom)
    plan = plan_depthwise(op, op.bottom, op.top, tuned(width))
    run = DepthwiseGradients(plan, images, bias=True)
    run.update(weights)
    run(x, dy, weight, bias, dx)
    return weight, bias, dx


def implicit_gemm(kernel):
    def run(width):
        op = conv(C, M, kernel=kernel)
        x, weights, offsets, y = operands(op)
        plan = plan_igemm(op, op.bottom, op.top, tuned(width))
        convolve = igemm_forward(plan, last(op.bottom), last(op.top), RELU)
        convolve.update(weights)
        convolve(x, y, offsets, None, aligned(convolve.scratch_size))
        return y

    return run


def implicit_gemm_gradients(width):
    op = conv(C, M)
    x, weights, _, _ = operands(op)
    dy, dx = in_memory(numbers(*op.top, seed=5), last(op.top)), aligned(math.prod(op.bottom))
    plan = plan_igemm(op, op.bottom, op.top, tuned(width))
    back = igemm_input_gradient(plan, last(op.bottom), last(op.top))
    back.update(weights)
    back(dy, dx, None, None, aligned(back.scratch_size))
    of_filters = FilterGradient(plan, last(op.bottom), last(op.top), op.kernel)
    filters, offsets = aligned(weights.size), aligned(M)
    of_filters(x, dy, filters, offsets, aligned(of_filters.scratch_size))
    return dx, filters, offsets


def separable(width):
    each, pixels = conv(C, C, group=C), conv(C, M, kernel=(1, 1))
    x, windows, first, _ = operands(each)
    _, weights, second, y = operands(pixels)
    plan = plan_separable(each, pixels, tuned(width))
    run = SeparableConvolution(plan, last(each.bottom), last(pixels.top), (RELU, RELU))
    run.depthwise.update(windows)
    run.update(weights)
    run(x, y, first, second, aligned(run.scratch_size))
    return y


def products(width):
    rows, length, columns, found = 29, 70, 96, []
    a, b = numbers(rows, length), numbers(length, columns, seed=1)
    for vectors in (1, 2, 3):
        c, kernel = (
            np.zeros((rows, columns), np.float32),
            product_kernel(width, vectors, [rows], adds=True),
        )
        for first in range(0, columns, vectors * width):
            called(
                kernel, a, 4 * length, 4, where(b[0, first:]), 4 * columns,
                where(c[0, first:]), 4 * columns, rows, length, 0,
            )  # fmt: skip
        found.append(c)
    return found


def few_rows(width):
    x, weight, y = numbers(4, 1000), numbers(M * 1000, seed=1), aligned(4 * M).reshape(4, M)
    panels = np.ascontiguousarray(weight.reshape(M // 16, 16, 1000).transpose(0, 2, 1))
    FewRows(4, 1000, M, 16, 1000, Tuning(width), RELU)(x, y, panels, numbers(M, seed=2))
    return y


def recurrent(cell, gates):
    def run(width):
        t, n, h = 3, 5, 32
        z, weight = numbers(t, n, gates * h), numbers(gates * h, h, seed=1) / h
        cont, hidden = np.ones((t, n), np.float32), np.zeros((t, n, h), np.float32)
        states = [numbers(n, h, seed=3 + state) for state in range(2 if cell == "LSTM" else 1)]
        run = Recurrence(cell, z, Tuning(width), trains=True)
        run.forward(forward_weights(weight, width), cont, states, hidden, states)
        dz, dy, known = np.zeros_like(z), numbers(t, n, h, seed=5), z if gates > 1 else hidden
        run.backward(backward_weights(weight, width, run.packed).copy(), cont, dy, known, dz)
        return hidden, *states, dz

    return run


def norm(c):
    def run(width):
        images = last((2, c, *SIZE))
        x, dy = (in_memory(numbers(*images.shape, seed=seed), images) for seed in (0, 1))
        factors, offsets = numbers(c, seed=2), numbers(c, seed=3)
        forward = Normalization(images, 1e-5, Tuning(width), relu=True)
        y, gradients = np.zeros_like(x), np.zeros((2, c), np.float32)
        sums = aligned(forward.scratch_size)
        forward(x, y, factors, offsets, sums)
        NormalizationGradient(forward)(x, dy, dy, factors, offsets, *gradients, sums)
        return y, gradients, dy

    return run


def plane_norm(c):
    def run(width):
        images = last((2, c, *SIZE))
        x, y = in_memory(numbers(*images.shape), images), aligned(2 * c * math.prod(SIZE))
        PlaneNorm(images, 1e-5, Tuning(width))(x, y)
        return y

    return run


def lrn(*, within):
    def run(width):
        images = last((2, C, *SIZE))
        of = LocalResponse(images, 5, 0.7, 1.0, Tuning(width), within=within)
        x, dy = (in_memory(numbers(*images.shape, seed=seed), images) for seed in (0, 1))
        y, dx, scratch = np.zeros_like(x), np.zeros_like(x), aligned(of.forward.scratch_size)
        of.forward(x, y, scratch)
        of.backward(x, dy, dx, scratch)
        return y, dx

    return run


def softmax(outer, length, inner):
    def run(width):
        x, dy = (numbers(outer * length * inner, seed=seed) for seed in (0, 1))
        y, dx = np.zeros_like(x), np.zeros_like(x)
        kernel = Softmax(outer, length, inner, Tuning(width))
        kernel.forward(x, y)
        if inner > 1:
            kernel.backward(y, dy, dx)
        return (y, dx) if inner > 1 else y

    return run


def pooling(method):
    def run(width):
        images, y = last((2, C, *SIZE)), last((2, C, 5, 15))
        window = (3, 3), (2, 2), (1, 1)
        op = ops.Pool("float32", method, images.shape, y.shape, *window, tops=1, train=True)
        kernel = Pooling(op, images, y, Tuning(width), trains=True)
        out, dx = aligned(math.prod(y.shape)), aligned(math.prod(images.shape))
        kernel.forward(in_memory(numbers(*images.shape), images), out)
        kernel.backward(in_memory(numbers(*y.shape, seed=1), y), dx)
        return out, dx

    return run


def elementwise_functions(width):
    found = []
    for name, count in elementwise.ARRAYS.items():
        for arrays in range(1, count + 1) if name in elementwise.SUMS else [count]:
            given = [numbers(1001, seed=seed) * 4 for seed in range(arrays)]
            results = [np.zeros(1001, np.float32) for _ in range(1 + (name in elementwise.PAIRS))]
            chain = [(name, (0.5, 0.75, 0.25))]
            elementwise.Elementwise(chain, arrays, 1001, Tuning(width))(*given, *results)
            found += results
    return found


def channel_affine(width):
    images = last((2, C, *SIZE))
    x, y = in_memory(numbers(*images.shape), images), aligned(2 * C * math.prod(SIZE))
    factors, offsets = numbers(C, seed=1), numbers(C, seed=2)
    channel_factors(images, Tuning(width))(x, factors, offsets, y)
    gated = np.zeros_like(y)
    gates(images, Tuning(width), adds=True)(x, numbers(2, C, seed=3), y, gated)
    return y, gated


def gate_gradient(c):
    def run(width):
        images = last((2, c, *SIZE))
        x, dy = (in_memory(numbers(*images.shape, seed=seed), images) for seed in (0, 1))
        dx, of_gates = np.zeros_like(x), np.zeros((2, c), np.float32)
        gradient = gradient_of_gates(images, Tuning(width), adds=False)
        gradient(x, numbers(2, c, seed=2), dy, dx, of_gates, None)
        return dx, of_gates

    return run


def resized(width):
    x, y = last((2, C, *SIZE)), last((2, C, 20, 47))
    out = aligned(math.prod(y.shape))
    Interpolation(x, y, (0, 0), SIZE, Tuning(width))(in_memory(numbers(*x.shape), x), out)
    return out


def regions(width):
    shape = (2, 48, *SIZE)
    images, bins, y = last(shape), some_bins(shape, 12, (4, 4)), aligned(12 * 48 * 16)
    x, sizes = in_memory(numbers(*shape), images), (12, (4, 4), Tuning(width))
    RegionMaxima(images, *sizes).run(bins, x, y)
    means, dx = aligned(12 * 3 * 16), np.empty_like(x)
    RegionMeans(shape, *sizes).run(bins, numbers(*shape), means)
    RegionMaximaGradient(images, *sizes).run(bins, x, numbers(y.size, seed=1), dx)
    shares = np.empty_like(x)
    RegionMeanGradient(shape, *sizes).run(bins, means, shares)
    return y, means, dx, shares


def rows(width):
    table, bias, y, sums = numbers(9, 45), numbers(45, seed=1), aligned(70 * 45), aligned(9 * 45)
    asked = np.abs(numbers(70, seed=2)) * 4
    selection = RowSelection(70, 9, 45, Tuning(width), biased=True)
    selection(asked, table, bias, y, np.zeros(1, np.int64))
    RowSums(70, 9, 45, Tuning(width))(asked, y, sums)
    return y, sums


def col2im(width):
    y = aligned(2 * 8 * 10 * C)
    run = Col2Im((2, 4, 5), (2, 8, 10, C), (4, 4), (2, 2), (1, 1), Tuning(width))
    run.take_offsets(numbers(C, seed=1))
    run(numbers(2 * 4 * 5 * 16 * C), y)
    return y


def updates(width):
    found = []
    fields = {"rate": 0.05, "decay": 0.01, "momentum": 0.9, "decay2": 0.99, "delta": 1e-3,
              "correction": 0.7}  # fmt: skip
    for name, rule in KERNEL_FORMULAS.items():
        w, g, *history = (np.abs(numbers(201, seed=seed)) for seed in range(2 + rule.histories))
        piece = Piece(Update(name, **fields), w, g, history)
        FusedOptimizer(Tuning(width))([piece])
        found += [w, *history]
    return found


KERNELS = {
    "Winograd's filtering, 3x3": winograd((3, 3)),
    "Winograd's filtering, 5x5": winograd((5, 5)),
    "Winograd's filtering, 1x7": winograd((1, 7)),
    "Winograd's filtering, gradient of the filters": winograd_gradient,
    "few input channels": few_inputs,
    "few planes": few_planes,
    "few input channels, gradient of the filters": few_inputs_gradient,
    "few output channels": windowed(
        plan_few_outputs, lambda plan, op: NarrowConvolution(plan, last(op.bottom), RELU), c=C, m=2
    ),
    "depthwise": windowed(
        plan_depthwise,
        lambda plan, op: DepthwiseConvolution(plan, last(op.bottom), last(op.top), RELU),
        c=C, m=C, group=C,
    ),
    "depthwise and 1x1 fused": separable,
    "depthwise, gradients": depthwise_gradients,
    "implicit GEMM of pixels": implicit_gemm((1, 1)),
    "implicit GEMM": implicit_gemm((3, 3)),
    "implicit GEMM, gradients of input and filters": implicit_gemm_gradients,
    "products of matrices": products,
    "InnerProduct of few rows": few_rows,
    "LSTM, both ways": recurrent("LSTM", 4),
    "RNN, both ways": recurrent("RNN", 1),
    "BatchNorm by the batch's statistics, both ways": norm(48),
    "BatchNorm of few channels, both ways": norm(16),
    "MVN": plane_norm(48),
    "MVN of few channels": plane_norm(16),
    "LRN across channels, both ways": lrn(within=False),
    "LRN within channels, both ways": lrn(within=True),
    "Softmax over few classes": softmax(500, 21, 1),
    "Softmax over many classes": softmax(50, 1001, 1),
    "Softmax of pixels, both ways": softmax(2, 40, 99),
    "MAX pooling, both ways": pooling("MAX"),
    "AVE pooling, both ways": pooling("AVE"),
    "functions of elements and their gradients": elementwise_functions,
    "Scale, Bias and gates": channel_affine,
    "gradient of gates": gate_gradient(48),
    "gradient of gates of few channels": gate_gradient(16),
    "Interp": resized,
    "ROIPooling, PSROIPooling": regions,
    "Embed, both ways": rows,
    "overlapping windows of a deconvolution": col2im,
    "updates of solvers": updates,
}  # fmt: skip

ORDER_FOLLOWS_WIDTH = {
    "few output channels", "LSTM, both ways", "RNN, both ways", "Softmax over many classes",
}  # fmt: skip
"""Kernels whose sums have another order at another width."""


def digest(kernel, width):
    """Return the digest of all that a kernel writes."""
    found = KERNELS[kernel](width)
    arrays = [found] if isinstance(found, np.ndarray) else found
    assert all(np.isfinite(array).all() and array.any() for array in arrays)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_width_of_vectors_changes_no_bit_where_the_order_of_sums_is_the_same(kernel):
    digests = {digest(kernel, width) for width in WIDTHS}

    if len(WIDTHS) > 1:
        assert (len(digests) == 1) == (kernel not in ORDER_FOLLOWS_WIDTH)


@pytest.mark.skipif(not RECORDED, reason="KERNEL_DIGESTS names no folder")
@pytest.mark.parametrize("kernel", KERNELS)
def test_bits_are_those_of_another_architecture(kernel):
    """The machine that runs first writes its digests; the next compares its own with them."""
    file, found = Path(RECORDED, kernel), digest(kernel, 4)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)

    assert file.read_text() == found
