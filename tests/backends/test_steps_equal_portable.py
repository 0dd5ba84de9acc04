"""Every operation on every device that has Steps for it, beside the layer's portable code.

One row of ``ROWS`` is one kind of case of one operation, and says which backends have a Step for
it. The row runs on numpy, on the processor and with the GPU's kernels (on the host, and on a GPU
where there is one), in both precisions, with all gradients wanted, some, or none.
"""

from dataclasses import dataclass
from functools import lru_cache

import pytest
from cuda_host import cuda_at
from hypothesis import given
from hypothesis import strategies as st
from step_cases import (
    convolutions,
    inner_products,
    layers,
    losses,
    lrns,
    poolings,
    recurrent,
)
from steps import Case, Way, expect_portable, expect_step

from demitasse.backends import ops
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.lowerings import LOWERINGS as CPU
from demitasse.backends.cpu.steps.elementwise import FUNCTIONS as CPU_FUNCTIONS
from demitasse.backends.cupy.lowerings import LOWERINGS as CUPY
from demitasse.backends.cupy.steps.elementwise import FUNCTIONS as CUPY_FUNCTIONS
from demitasse.backends.numpy.lowerings import LOWERINGS as NUMPY
from demitasse.backends.numpy.steps.elementwise import FUNCTIONS as NUMPY_FUNCTIONS
from demitasse.testing import make_layer
from demitasse.testing.layer_cases import CASES, OTHER_CASES

needs_kernels = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

CHAINS = {"numpy": ["numpy"], "cpu": ["cpu", "numpy"], "host": ["cupy"], "cuda:0": ["cupy"]}
"""For each device the packages whose Steps it tries, in order; "host" runs the GPU's kernels."""

RTOL_OF = {"numpy": 1e-5}
"""Allowed in float32 on a device, whatever the row allows; numpy's Steps are near portable code."""

EVERY = ("numpy", "cpu", "cupy")

ALL, NONE, ODD, EVEN = (True,) * 8, (), (True, False) * 4, (False, True) * 4
WHOLE = [(ALL, ALL), (NONE, NONE)]
PARTS = [(ODD, EVEN), (EVEN, ODD), (ALL, NONE), (NONE, ODD), (NONE, EVEN)]
"""Of which bottoms and of which parameters the gradients are wanted."""


@dataclass(frozen=True)
class Row:
    """Cases of one operation that the same backends have Steps for.

    Attributes:
        name: What is special about them.
        op: The operation.
        cases: What is drawn from.
        runs: The backends whose Step must run them; that of kernels, in float32 alone.
        may: The backends that take some of them.
        function: Of an Activation.
        in_place: Whether the first top is the first bottom.
        frozen: Whether some gradients may be unwanted while others are wanted.
        gradient: Whether there is one.
        rtol: Allowed instead of the usual in float32.
    """

    name: str
    op: type[ops.Op]
    cases: st.SearchStrategy[Case]
    runs: tuple[str, ...] = EVERY
    may: tuple[str, ...] = ()
    function: str = ""
    in_place: bool = False
    frozen: bool = True
    gradient: bool = True
    rtol: float | None = None

    def __str__(self) -> str:
        return f"{self.name} in place" if self.in_place else self.name

    def ways(self) -> st.SearchStrategy[Way]:
        """What a case runs as: in both precisions; with all gradients, or some, or none."""
        wanted = WHOLE + PARTS * self.frozen if self.gradient else [(NONE, NONE)]
        return st.sampled_from(
            [
                Way(dtype, self.in_place, *both)
                for both in wanted
                for dtype in ("float32", "float64")
            ]
        )


# -- the table ---------------------------------------------------------------------------------

FLAT = [((3, 7),), ((2, 16, 3, 2),), ((5,),)]
IMAGES = [((2, 3, 4, 5),), ((3, 16, 2),), ((4, 5),)]
COLUMN = [((1, 3),)]
PYRAMIDS = ("pyramid_height: 3", "pyramid_height: 2 pool: AVE", "pyramid_height: 1")
SIZES = ("height: 7 width: 9", "shrink_factor: 2", "zoom_factor: 2 pad_beg: -1")
BINS = ("pooled_h: 2 pooled_w: 3 spatial_scale: 0.1", "pooled_h: 5 pooled_w: 4 spatial_scale: 0.1")
MAPS = [((2, 5, 9, 8), (4, 5)), ((2, 16, 9, 8), (4, 5)), ((2, 40, 3, 4), (1, 5)),
        ((2, 45, 1, 1), (3, 5)), ((2, 20, 1, 6), (2, 5))]  # fmt: skip
GROUPS = "spatial_scale: 0.1 output_dim: 4 group_size: 3"
SCORES = [((2, 36, 9, 8), (4, 5)), ((2, 36, 3, 19), (1, 5)), ((2, 36, 1, 1), (3, 5))]
BRANCHES = [((2, 3, 4), (2, 1, 4), (2, 2, 4)), ((2, 16, 3, 3), (2, 32, 3, 3), (2, 16, 3, 3))]
NORM = {"params": "positive"}
CUDA, HOST = ("cupy",), ("numpy", "cupy")
COMPILED = ("cpu", "cupy")


def apart_and_in_place(name, op, cases, apart, in_place, **options):
    """Rows of an operation that may run in place."""
    return [
        Row(name, op, cases, apart, **options),
        Row(name, op, cases, in_place, in_place=True, **options),
    ]


def activation(kind, function, apart=(), in_place=None, fields="", may=(), **options):
    """Rows of an activation function; the same backends have it in place, unless others are named.

    One line for each function, and for each range of its constants that other Steps compute.
    """
    cases = layers(kind, fields, shapes=FLAT, **options)
    in_place = apart if in_place is None else in_place
    name = f"{kind} {fields}".strip()
    options = {"function": function, "may": may, "frozen": False}
    return apart_and_in_place(name, ops.Activation, cases, apart, in_place, **options)


ROWS = [
    *activation("ReLU", "relu", EVERY),
    *activation("ReLU", "relu", COMPILED, fields="negative_slope: 0.1"),
    *activation("ReLU", "relu", ("cpu",), may=CUDA, fields="negative_slope: -0.5"),
    *activation("Sigmoid", "sigmoid", COMPILED),
    *activation("TanH", "tanh", COMPILED),
    *activation("GELU", "gelu", COMPILED),
    *activation("BNLL", "bnll", COMPILED),
    *activation("Clip", "clip", COMPILED, fields="min: -0.5 max: 1"),
    *activation("HardSwish", "hard_swish", COMPILED),
    *activation("Clip", "clip", COMPILED, fields="min: 1 max: -0.5"),
    *activation("ELU", "elu", COMPILED),
    *activation("ELU", "elu", COMPILED, fields="alpha: 0"),
    *activation("ELU", "elu", ("cpu",), may=CUDA, fields="alpha: -0.5"),
    *activation("Exp", "exp", COMPILED),
    *activation("Exp", "exp", COMPILED, fields="base: 2 scale: 0.5 shift: -1"),
    *activation("Log", "log", CUDA, values=("positive",)),
    *activation("Log", "log", CUDA, fields="base: 2 scale: 2 shift: 1", values=("positive",)),
    *activation("Power", "power", COMPILED, fields="power: 2 shift: 1"),
    *activation("Power", "power", COMPILED, fields="scale: 0.5"),
    *activation("Power", "power", CUDA, fields="power: 0 shift: 2"),
    *activation("Power", "power", CUDA, fields="scale: 0 shift: 3"),
    *activation("Power", "power", CUDA, fields="power: -1.5 shift: 1", values=("positive",)),
    *activation("ReLU6", "relu6", ("cpu",)),
    *activation("ReLU6", "relu6", fields="negative_slope: 0.1"),
    *activation("Swish", "swish", COMPILED),
    *activation("Swish", "swish", COMPILED, fields="beta: -2.5"),
    *activation("Swish", "swish", COMPILED, fields="beta: 0"),
    Row("ReLU at its kink", ops.Activation, layers("ReLU", shapes=FLAT, values=("ties",)),
        function="relu", frozen=False),
    Row("AbsVal", ops.Activation, layers("AbsVal", shapes=FLAT), COMPILED, function="abs",
        frozen=False),
    Row("Threshold", ops.Activation, layers("Threshold", shapes=FLAT), (), function="threshold",
        gradient=False),
    *apart_and_in_place("dropout", ops.Dropout, layers("Dropout", shapes=FLAT),
        COMPILED, COMPILED),
    *apart_and_in_place("dropout in TEST", ops.Dropout, layers("Dropout", shapes=FLAT,
        phase="TEST"), COMPILED, COMPILED),
    *apart_and_in_place("dropout that scales in TEST", ops.Dropout, layers("Dropout",
        "scale_train: false", shapes=FLAT, phase="TEST"), COMPILED, COMPILED),

    Row("convolution", ops.Conv, convolutions()),
    Row("convolution over 1 or 3 axes", ops.Conv, convolutions(axes=(1, 3))),
    Row("convolution of many channels", ops.Conv, layers("Convolution",
        "num_output: 16 kernel_size: 3 pad: 1", "num_output: 20 kernel_size: 1",
        "num_output: 32 kernel_size: 3 stride: 2 group: 2",
        shapes=[((2, 16, 7, 6),), ((2, 20, 7, 6),)])),
    Row("depthwise convolution", ops.Conv, layers("Convolution",
        "num_output: 6 group: 6 kernel_size: 3 pad: 1 stride: 2",
        shapes=[((1, 6, 9, 8),), ((20, 6, 9, 8),)])),
    Row("convolution of small groups", ops.Conv, layers("Convolution",
        "num_output: 32 group: 8 kernel_size: 3 pad: 1 stride: 2",
        "num_output: 32 group: 4 kernel_size: 3 pad: 2 dilation: 2 bias_term: false",
        shapes=[((1, 32, 9, 8),), ((20, 32, 5, 19),)])),
    Row("convolution to few channels", ops.Conv, layers("Convolution",
        "num_output: 1 kernel_size: 5 pad: 2", "num_output: 3 kernel_size: 3 bias_term: false",
        shapes=[((1, 32, 9, 18),), ((20, 32, 5, 7),)])),
    Row("convolution whose window sticks out by less than a stride", ops.Conv,
        layers("Convolution", "num_output: 2 kernel_size: 4 stride: 2", shapes=[((2, 3, 3, 3),)]),
        HOST, may=("cpu",)),
    Row("convolution by filters as wide as an image of one channel", ops.Conv, layers("Convolution",
        "num_output: 4 kernel_h: 3 kernel_w: 16 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0",
        "num_output: 20 kernel_h: 2 kernel_w: 16 stride: 1 bias_term: false",
        shapes=[((2, 1, 9, 16),)])),
    Row("convolution of several bottoms", ops.Conv, layers("Convolution",
        "num_output: 4 kernel_size: 3 pad: 1", shapes=[((2, 3, 5, 6),) * 3], tops=3), HOST),
    Row("convolution over 4 axes", ops.Conv, layers("Convolution",
        "num_output: 4 kernel_size: 2 dilation: 2 group: 2", shapes=[((2, 2, 5, 4, 3, 6),)]),
        HOST),
    Row("convolution after another axis", ops.Conv, layers("Convolution",
        "num_output: 4 kernel_size: 3 axis: 2", shapes=[((2, 3, 4, 5, 6),)])),
    Row("convolution without axes", ops.Conv, layers("Convolution",
        "num_output: 4 kernel_size: 1", shapes=[((3, 4),)]), COMPILED),
    Row("convolution of no image", ops.Conv, convolutions(batches=(0,)), CUDA),
    Row("convolution", ops.Conv, layers("Convolution",
        "num_output: 4 kernel_size: 1", shapes=[((2, 4, 5, 5),)]), (), in_place=True,
        gradient=False),
    Row("deconvolution", ops.Deconv, convolutions("Deconvolution"), HOST, may=("cpu",)),
    Row("deconvolution over 1 or 3 axes", ops.Deconv, convolutions("Deconvolution", axes=(1, 3)),
        HOST, may=("cpu",)),
    Row("deconvolution that doubles", ops.Deconv, layers("Deconvolution",
        "num_output: 4 kernel_size: 4 stride: 2 pad: 1",
        "num_output: 16 kernel_size: 2 stride: 2 bias_term: false", shapes=[((2, 16, 4, 5),)])),
    Row("deconvolution to few channels without a gradient", ops.Deconv, layers("Deconvolution",
        "num_output: 3 kernel_size: 4 stride: 2 pad: 1",
        "num_output: 1 kernel_size: 2 stride: 2 bias_term: false",
        "num_output: 15 kernel_size: 8 stride: 4 pad: 2",
        "num_output: 7 kernel_h: 3 kernel_w: 6 stride_h: 1 stride_w: 3 pad_h: 2 pad_w: 4",
        shapes=[((2, 16, 4, 5),), ((1, 5, 3, 4),)]), gradient=False),
    Row("depthwise deconvolution", ops.Deconv, layers("Deconvolution",
        "num_output: 6 group: 6 kernel_size: 3 pad: 1 stride: 2",
        shapes=[((1, 6, 9, 8),), ((20, 6, 9, 8),)]), HOST, may=("cpu",)),
    Row("deconvolution of several bottoms", ops.Deconv, layers("Deconvolution",
        "num_output: 4 kernel_size: 3 pad: 1", shapes=[((2, 3, 5, 6),) * 3], tops=3), HOST),
    Row("deconvolution of no image", ops.Deconv, convolutions("Deconvolution", batches=(0,)),
        CUDA),

    Row("MAX pooling", ops.Pool, poolings(methods=("MAX",)), HOST, may=("cpu",)),
    Row("AVE pooling", ops.Pool, poolings(methods=("AVE",)), CUDA, may=("cpu",)),
    Row("MAX pooling over 1 or 3 axes", ops.Pool, poolings(axes=(1, 3), methods=("MAX",)), HOST,
        may=("cpu",)),
    Row("AVE pooling over 1 or 3 axes", ops.Pool, poolings(axes=(1, 3), methods=("AVE",)), CUDA,
        may=("cpu",)),
    Row("pooling with a mask", ops.Pool, poolings(methods=("MAX",), tops=(2,)), HOST),
    Row("MAX pooling of common windows", ops.Pool, layers("Pooling",
        "kernel_size: 2 stride: 2", "kernel_size: 3 stride: 2", "global_pooling: true",
        shapes=[((2, 16, 8, 8),), ((2, 3, 7, 6),), ((3, 2, 4, 4, 4),)])),
    Row("AVE pooling of common windows", ops.Pool, layers("Pooling",
        *(f"pool: AVE {window}" for window in
          ("kernel_size: 2 stride: 2", "kernel_size: 3 stride: 2", "global_pooling: true")),
        shapes=[((2, 16, 8, 8),), ((2, 3, 7, 6),), ((3, 2, 4, 4, 4),)]), ("cpu", "cupy")),
    Row("stochastic pooling", ops.Pool, layers("Pooling",
        "pool: STOCHASTIC kernel_size: 2", shapes=[((1, 2, 4, 5),)], values=("positive",)), ()),
    Row("pooling over windows outside the image", ops.Pool, layers("Pooling",
        "kernel_size: 1 stride: 3", shapes=[((2, 3, 5, 5),)])),
    Row("pooling over windows outside the image, with a mask", ops.Pool, layers("Pooling",
        "kernel_size: 1 stride: 3", shapes=[((2, 3, 5, 5),)], tops=2), HOST),
    Row("pooling whose empty windows make up for left-out rows", ops.Pool, layers("Pooling",
        "kernel_h: 1 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 0 pad_w: 0",
        shapes=[((2, 3, 2, 2),)]), HOST, may=("cpu",)),

    Row("inner product", ops.InnerProduct, inner_products()),
    Row("inner product, transposed", ops.InnerProduct, inner_products(transpose=True)),
    Row("inner product of all axes", ops.InnerProduct, layers("InnerProduct",
        "num_output: 5 axis: 0", shapes=[((3, 4),)])),
    Row("inner product of few rows", ops.InnerProduct, layers("InnerProduct",
        "num_output: 40", shapes=[((3, 20),)])),
    Row("inner product of few rows without a gradient", ops.InnerProduct, layers("InnerProduct",
        "num_output: 40", "num_output: 7 bias_term: false", shapes=[((3, 20),), ((8, 1100),)]),
        gradient=False),
    Row("inner product of no row", ops.InnerProduct, layers("InnerProduct",
        "num_output: 5", shapes=[((0, 3),)]), HOST),

    Row("LRN of many channels", ops.LRN, lrns("ACROSS_CHANNELS", [16, 32]), CUDA,
        may=("cpu",), rtol=5e-5),
    Row("LRN of AlexNet", ops.LRN, layers("LRN",
        "local_size: 5 alpha: 0.7 beta: 0.75", shapes=[((2, 16, 5, 4),), ((1, 20, 3, 2),)]),
        COMPILED, rtol=5e-5),
    Row("LRN", ops.LRN, lrns("ACROSS_CHANNELS", [1, 2, 3, 6]), CUDA, may=("cpu",),
        rtol=5e-5),
    Row("LRN within channels", ops.LRN, lrns("WITHIN_CHANNEL", [1, 3]), CUDA, may=("cpu",),
        rtol=5e-5),
    Row("LRN within several channels", ops.LRN, layers("LRN",
        "norm_region: WITHIN_CHANNEL local_size: 3 alpha: 0.7 beta: 0.75",
        "norm_region: WITHIN_CHANNEL local_size: 5 alpha: 0.7 beta: 0.75",
        shapes=[((2, 16, 5, 4),), ((1, 32, 7, 1),), ((2, 11, 3, 4),)]), COMPILED, rtol=5e-5),

    *apart_and_in_place("normalize", ops.Normalize, layers("Normalize",
        "across_spatial: false channel_shared: false", "across_spatial: false eps: 0.1",
        shapes=[((2, 16, 3, 4),), ((1, 21, 5, 2),), ((2, 3, 2, 2),)]), ("cpu",), ("cpu",),
        gradient=False),
    Row("normalize, trained", ops.Normalize, layers("Normalize", "across_spatial: false",
        shapes=[((2, 16, 3, 4),)]), (), may=("cpu",)),

    Row("softmax of many rows", ops.Softmax, layers("Softmax", "axis: 1",
        shapes=[((40, 2),), ((33, 21),), ((20, 7, 1, 1),), ((2, 5, 6, 7),)]), COMPILED),
    Row("prior boxes", ops.Constant, layers("PriorBox",
        "min_size: 4 max_size: 9 aspect_ratio: 2 flip: true variance: 0.1",
        "min_size: 3 clip: true", shapes=[((2, 3, 4, 5), (2, 3, 16, 20))]), ("cpu",)),
    *apart_and_in_place("softmax", ops.Softmax, layers("Softmax",
        "axis: 0", "axis: 1", "axis: -1",
        shapes=[((4, 7),), ((2, 5, 3),), ((2, 16, 5),), ((3, 1000),)]),
        COMPILED, CUDA),
    Row("softmax loss", ops.SoftmaxLoss, losses(), COMPILED),
    Row("softmax loss and probabilities", ops.SoftmaxLoss, losses(tops=2), COMPILED),

    Row("Euclidean loss", ops.PairLoss, layers("EuclideanLoss",
        shapes=[((3, 4), (3, 4)), ((2, 3, 2), (2, 6)), ((5,), (5,))]), CUDA),
    Row("Euclidean loss of nothing", ops.PairLoss, layers("EuclideanLoss",
        shapes=[((2, 0), (2, 0))]), ()),
    Row("sigmoid cross entropy", ops.PairLoss, layers("SigmoidCrossEntropyLoss",
        *(f"{ignore} normalization: {mode}"
          for mode in ("FULL", "VALID", "BATCH_SIZE", "NONE")
          for ignore in ("", "ignore_label: 1")),
        shapes=[((3, 4), (3, 4)), ((2, 3, 2), (2, 6))], values=("normal", "marks")), CUDA),
    Row("accuracy", ops.Accuracy, layers("Accuracy",
        "", "top_k: 3", "ignore_label: 1", "ignore_label: 1 top_k: 2", "axis: -1",
        shapes=[((6, 4), (6,))], values=("ties", "labels")), CUDA, gradient=False),
    Row("accuracy of pixels", ops.Accuracy, layers("Accuracy",
        "axis: 1", "ignore_label: 0 top_k: 2",
        shapes=[((2, 4, 3, 2), (2, 3, 2))], values=("ties", "labels")), CUDA, gradient=False),
    Row("accuracy of each class", ops.Accuracy, layers("Accuracy",
        shapes=[((6, 4), (6,))], values=("ties", "labels"), tops=2), (), gradient=False),

    *apart_and_in_place("batch norm", ops.BatchNorm, layers("BatchNorm",
        "moving_average_fraction: 0.7 eps: 0.01", "", shapes=IMAGES, **NORM), COMPILED, COMPILED),
    *apart_and_in_place("batch norm of one value", ops.BatchNorm, layers("BatchNorm",
        shapes=COLUMN, **NORM), CUDA, CUDA),
    *apart_and_in_place("batch norm by stored statistics", ops.BatchNorm, layers("BatchNorm",
        "use_global_stats: true", shapes=[*IMAGES, *COLUMN], **NORM), EVERY, EVERY),
    *apart_and_in_place("batch norm by statistics never filled", ops.BatchNorm,
        layers("BatchNorm", "use_global_stats: true", shapes=IMAGES, params="zero"), EVERY, EVERY),
    *apart_and_in_place("batch norm of BN", ops.AffineBatchNorm, layers("BN",
        "eps: 0.01 momentum: 0.7", "bn_mode: LEARN", shapes=IMAGES, **NORM), ("cpu",), ("cpu",)),
    *apart_and_in_place("batch norm of BN, frozen", ops.AffineBatchNorm, layers("BN",
        "frozen: true eps: 0.01", shapes=[*IMAGES, *COLUMN], **NORM), ("cpu",), ("cpu",)),
    *apart_and_in_place("batch norm of NVCaffe", ops.AffineBatchNorm, layers("BatchNorm",
        "use_global_stats: true scale_bias: true", "scale_bias: true", shapes=IMAGES, **NORM),
        ("cpu",), ("cpu",)),
    *apart_and_in_place("scale of SegNet's BN", ops.Scale, layers("BN",
        "bn_mode: INFERENCE", shapes=IMAGES), EVERY, EVERY),
    *apart_and_in_place("scale", ops.Scale, layers("Scale",
        "bias_term: true", "", shapes=IMAGES), EVERY, EVERY),
    *apart_and_in_place("bias", ops.Bias, layers("Bias", "", shapes=IMAGES), ("cpu",), ("cpu",)),
    *apart_and_in_place("bias over other axes", ops.Bias, layers("Bias",
        "axis: 0", "axis: 0 num_axes: 2", "axis: -1", "num_axes: 0", "axis: 2 num_axes: -1",
        shapes=[((2, 3, 4, 2),)]), (), ()),
    *apart_and_in_place("bias from a second bottom", ops.Bias, layers("Bias",
        "axis: 0", shapes=[((3, 4, 5), (3, 4))]), (), ()),
    *apart_and_in_place("scale over other axes", ops.Scale, layers("Scale",
        "axis: 0", "num_axes: 2 bias_term: true", "axis: 0 num_axes: 2", "axis: -1",
        "num_axes: 0", "axis: 2 num_axes: -1", shapes=[((2, 3, 4, 2),)]), HOST, HOST),
    *apart_and_in_place("scale by a second bottom", ops.Scale, layers("Scale",
        "axis: 0 bias_term: true", "axis: 0", shapes=[((3, 4, 5), (3, 4))]),
        ("numpy",), ("numpy",), may=("cpu",)),
    *apart_and_in_place("scale of channels by a second bottom", ops.Scale, layers("Scale",
        shapes=[((3, 4, 5), (4,))]), ("numpy",), ("numpy",)),

    *apart_and_in_place("scale of each image's channels by a second bottom", ops.Scale,
        layers("Scale", "axis: 0", shapes=[((3, 4, 5), (3, 4)), ((2, 16, 3, 4), (2, 16))]),
        ("numpy", "cpu"), ("numpy", "cpu"), gradient=False),
    Row("gates", ops.Axpy, layers("Axpy",
        shapes=[((3, 4), (3, 4, 5), (3, 4, 5)), ((2, 16, 1, 1), *[(2, 16, 3, 4)] * 2)]),
        ("cpu",), gradient=False),
    Row("gates, trained", ops.Axpy, layers("Axpy",
        shapes=[((2, 16, 1, 1), *[(2, 16, 3, 4)] * 2), ((3, 32), *[(3, 32, 5, 5)] * 2)]),
        ("cpu",), frozen=False),
    Row("gates, trained in part", ops.Axpy, layers("Axpy",
        shapes=[((2, 16, 1, 1), *[(2, 16, 3, 4)] * 2)]), (), may=("cpu",)),
    Row("gates without another, trained", ops.Scale, layers("Scale", "axis: 0",
        shapes=[((2, 16, 3, 4), (2, 16)), ((3, 32, 5, 5), (3, 32))]),
        ("numpy", "cpu"), frozen=False),

    *apart_and_in_place("PReLU", ops.PReLU, layers("PReLU", shapes=IMAGES), ("cpu",),
        ("cpu",)),
    *apart_and_in_place("PReLU of one slope", ops.PReLU, layers("PReLU", "channel_shared: true",
        shapes=IMAGES), (), ()),
    *apart_and_in_place("sum", ops.Eltwise, layers("Eltwise",
        "", "coeff: 3 coeff: 1", "coeff: 0.5 coeff: -1",
        shapes=[((3, 4),) * 2, ((2, 16, 3, 2),) * 2]), COMPILED, CUDA),
    *apart_and_in_place("sum of three", ops.Eltwise, layers("Eltwise",
        "", "coeff: 1 coeff: -2 coeff: 0.5", shapes=[((3, 4),) * 3]), COMPILED, CUDA),
    *apart_and_in_place("product and maximum", ops.Eltwise, layers("Eltwise",
        "operation: PROD", "operation: MAX", shapes=[((2, 3),) * 2, ((2, 20, 3, 5),) * 2]),
        ("cpu",), ("cpu",)),
    *apart_and_in_place("product by quotients", ops.Eltwise, layers("Eltwise",
        "operation: PROD stable_prod_grad: false", shapes=[((2, 3),) * 2]), (), (),
        may=("cpu",)),
    *apart_and_in_place("product and maximum of three", ops.Eltwise, layers("Eltwise",
        "operation: PROD", "operation: MAX", shapes=[((2, 3),) * 3]), (), ()),
    *apart_and_in_place("MVN", ops.MVN, layers("MVN",
        shapes=[((2, 16, 4, 5),), ((3, 96, 13, 12),), ((2, 3, 4, 5),), ((2, 20, 3, 1),)]),
        ("cpu",), ("cpu",)),
    *apart_and_in_place("MVN of all channels, or of means alone", ops.MVN, layers("MVN",
        "across_channels: true", "normalize_variance: false", shapes=[((2, 16, 4, 5),)]), (), ()),
    Row("crop", ops.Crop, layers("Crop",
        "offset: 1", "axis: 1 offset: 1 offset: 0 offset: 2",
        shapes=[((2, 5, 4, 6), (2, 3, 2, 4)), ((2, 17, 4, 6), (2, 16, 2, 4))]), ("cpu",)),
    Row("rows of a table", ops.Embed, layers("Embed",
        *(f"num_output: {m} input_dim: 4 bias_term: {bias} weight_filler {{ type: 'gaussian' }}"
          for m, bias in ((5, "true"), (16, "false"))),
        shapes=[((3,),), ((2, 4),), ((2, 3, 1),)], values=("labels",)), ("cpu",)),
    Row("upsampling", ops.Repeat, layers("Upsample", "scale: 2", "scale: 3", "",
        shapes=[((2, 5, 4, 6),), ((1, 17, 3, 3),), ((3, 1, 5, 4),), ((2, 32, 1, 7),), ((4, 3),)]),
        ("cpu",)),
    Row("tile", ops.Tile, layers("Tile", "tiles: 2", "axis: 0 tiles: 3", "axis: 2 tiles: 5",
        "axis: -1 tiles: 1", shapes=[((2, 5, 4, 6),), ((1, 17, 3),), ((3, 1, 5, 4, 2),)]),
        ("cpu",)),
    Row("interpolation", ops.Interpolation, layers("Interp", *SIZES,
        shapes=[((2, 5, 4, 6),), ((1, 17, 3, 3),), ((3, 1, 5, 4),), ((1, 32, 9, 7),)]),
        ("cpu",)),
    Row("regions", ops.ROIPool, layers("ROIPooling", *BINS, shapes=MAPS,
        values=("normal", "regions")), COMPILED),
    Row("means of regions", ops.PSROIPool, layers("PSROIPooling", GROUPS, shapes=SCORES,
        values=("normal", "regions")), COMPILED),
    Row("pyramid", ops.SpatialPyramidPool, layers("SPP", *PYRAMIDS,
        shapes=[((2, 16, 7, 9),), ((3, 5, 4, 4),)]), (), may=("cpu",)),
    Row("pyramid without a gradient", ops.SpatialPyramidPool, layers("SPP", *PYRAMIDS,
        shapes=[((2, 16, 7, 9),), ((3, 5, 4, 4),), ((1, 40, 13, 13),)]), ("cpu",),
        gradient=False),
    Row("slice", ops.Slice, layers("Slice", "axis: 1", "axis: 2", "axis: 1 slice_point: 1",
        shapes=[((2, 4, 6),), ((3, 32, 4, 5),)], tops=2), ("cpu",)),
    Row("concat", ops.Concat, layers("Concat", "axis: 1", shapes=BRANCHES),
        COMPILED),
    Row("concat along the first axis", ops.Concat, layers("Concat", "axis: 0",
        shapes=[((2, 3), (5, 3)), ((2, 3, 4), (1, 3, 4), (3, 3, 4))]), CUDA, may=("cpu",)),
    Row("concat along the last axis", ops.Concat, layers("Concat", "axis: -1",
        shapes=[((2, 3, 4), (2, 3, 1))]), CUDA, may=("cpu",)),
    Row("concat of nothing and something", ops.Concat, layers("Concat", "axis: 1",
        shapes=[((2, 0, 4), (2, 2, 4))]), CUDA),
    Row("permute", ops.Permute, layers("Permute",
        "order: 0 order: 2 order: 3 order: 1", "order: 0 order: 3 order: 1 order: 2", "order: 3",
        "order: 0", shapes=[((2, 3, 5, 4),), ((1, 24, 3, 1),), ((2, 16, 1, 1),)]), ("cpu",)),
    Row("permute of nothing", ops.Permute, layers("Permute", "order: 1 order: 0",
        shapes=[((0, 3),)]), ()),
    *apart_and_in_place("shuffle", ops.Shuffle, layers("ShuffleChannel",
        "group: 2", "group: 3", "group: 6", "group: 1",
        shapes=[((2, 6, 5, 4),), ((1, 48, 3, 1),), ((3, 12),)]), ("cpu",), ()),
    *(Row(f"split for {readers}", ops.Split, layers("Split", shapes=FLAT, tops=readers), COMPILED)
      for readers in (2, 3, 5)),
    # 1 - tanh^2 is a difference of nearly equal numbers where tanh is near 1
    *(Row(kind, ops.Recurrent, recurrent(kind), ("cpu",), frozen=False, rtol=5e-5)
      for kind in ("LSTM", "RNN")),
    *(Row(f"{kind} of which some is learned", ops.Recurrent, recurrent(kind), (),
          may=("cpu",), rtol=5e-5) for kind in ("LSTM", "RNN")),
]  # fmt: skip
"""What is run. Where ``runs`` is not given, every backend has a Step."""


FEW = 6
"""How many layers of a row run in every run."""

PLACES = pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=needs_kernels if place == "cpu" else ()) for place in CHAINS],
)
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=str)


@pytest.mark.hypothesis
@PLACES
@EACH_ROW
def test_the_step_computes_what_the_portable_code_computes(row, place):
    expect_rows(row, place, some(row))


@pytest.mark.exhaustive
@pytest.mark.hypothesis
@PLACES
@EACH_ROW
def test_the_other_cases_are_computed_so_too(row, place):
    expect_rows(row, place, [both for both in drawn(row) if both not in some(row)])


@lru_cache(maxsize=2)
def drawn(row):
    """Return the cases of a row and how each runs; drawn once, for all places."""
    found = {}

    @given(row.cases, row.ways())
    def draw(case, way):
        found[case, way] = None

    draw()
    return list(found)


def some(row):
    """Return the first cases in which a precision, wanted gradients or one of few layers occur."""
    layers = list(dict.fromkeys(case.layer for case, _ in drawn(row)))[:FEW]
    found, shown = [], set()
    for case, way in drawn(row):
        shows = {way.dtype, (way.bottoms, way.params), *{case.layer}.intersection(layers)}
        if not shows <= shown:
            found.append((case, way))
            shown |= shows
    return found


def expect_rows(row, place, cases):
    device = cuda_at(place) if place in {"host", "cuda:0"} else place
    for case, way in cases:
        expect_row(row, place, device, case, way)


def expect_row(row, place, device, case, way):
    single = way.dtype == "float32"

    one = expect_portable(case, way, device, RTOL_OF.get(place, row.rtol) if single else None)

    assert operation(one.layer.op) == (row.op, row.function)
    runs, may = ({b for b in which if single or b != "cpu"} for which in (row.runs, row.may))
    expect_step(one.entry, CHAINS[place], runs, may)


def operation(op):
    """What tells operations apart: the class, and of an Activation the function."""
    return type(op), op.function if isinstance(op, ops.Activation) else ""


# -- the table is complete -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "lowerings", "functions"),
    [
        ("numpy", NUMPY, NUMPY_FUNCTIONS),
        ("cpu", CPU, CPU_FUNCTIONS),
        ("cupy", CUPY, CUPY_FUNCTIONS),
    ],
)
def test_every_operation_that_a_backend_has_a_step_for_has_a_row(package, lowerings, functions):
    mine = {(row.op, row.function) for row in ROWS if package in row.runs}

    want = {(op, "") for op in lowerings if op is not ops.Activation}
    assert mine == want | {(ops.Activation, function) for function in functions}


def test_every_operation_of_every_layer_has_a_row():
    described = {
        operation(op)
        for case in (case for table in (CASES, OTHER_CASES) for cases in table.values()
                     for case in cases)
        if (op := make_layer(case.text, case.bottoms, phase=case.phase).layer.op)
    }  # fmt: skip

    assert described == {(row.op, row.function) for row in ROWS}
