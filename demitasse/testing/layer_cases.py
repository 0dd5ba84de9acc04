"""Small test cases of every layer type: prototxt and bottoms.

Types with a gradient have a case for every option that changes results; the project's tests check
their gradients. :mod:`demitasse.testing.conformance` runs all cases on any device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Table = Mapping[str, Sequence[tuple[Any, ...]]]


@dataclass(frozen=True)
class LayerCase:
    """One layer and its bottoms; the prototxt is without name and type."""

    type: str
    number: int  # from 0 for each type
    fields: str
    bottoms: tuple[np.ndarray, ...]
    phase: str = "TRAIN"
    passes: int = 0  # forward passes before the shapes of the tops are known
    check: Mapping[str, Any] = field(default_factory=dict)  # options of ``check_gradients``

    @property
    def text(self) -> str:
        """Prototxt of the layer, for ``make_layer``."""
        return f'type: "{self.type}" {self.fields}'

    def __str__(self) -> str:
        return f"{self.type}-{self.number}"


RNG = np.random.default_rng(7)


def apart(*shape: int) -> np.ndarray:
    """Return distinct values in random order, none near 0, where many functions have a kink."""
    values: np.ndarray = np.linspace(-1.5, 1.5, int(np.prod(shape)) // 2 * 2 + 2)
    values = values[values != 0]
    return RNG.permutation(values)[: int(np.prod(shape))].reshape(shape)


FILLER = 'filler { type: "gaussian" std: 0.7 }'


def filler(*names: str) -> str:
    """Return Gaussian fillers of these parameters."""
    return " ".join(f"{name}_{FILLER}" for name in names)


WB = filler("weight", "bias")
IMAGE, ROWS = apart(2, 4, 4, 3), apart(3, 4)
FLAT = apart(2, 3, 4)
CONT = np.array([[0.0, 0], [1, 1], [1, 0]])  # every sequence starts in the first step
STEPS = apart(3, 2, 4)
RECURRENT = f"recurrent_param {{ num_output: 3 {WB} }}"
SCORES, CLASSES = apart(3, 4, 2), np.array([[0, 3], [1, 1], [2, 0.0]])
SCORES_2D, LABELS = apart(3, 4), np.array([3.0, 0, 2])
TARGETS = (RNG.random((3, 4)) * 0.8 + 0.1).round(3)
WHOLE_TARGETS = np.array([[0.0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 0]])
REGIONS = np.array([[0.0, 0, 0, 40, 60], [1, 10, 20, 62, 62]])
STATISTICS = "bbox_mean: [0, 0.1, 0, 0.1] bbox_std: [0.1, 0.1, 0.2, 0.2]"
IN_PLACE = 'bottom: "x" top: "x"'
BOX_CORNERS = np.array([[0, 0], [0.1, 0.1], [0.4, 0.5], [0.6, 0], [0, 0.6], [0.3, 0.3]])
BOX_PRIORS = np.stack([np.hstack([BOX_CORNERS, BOX_CORNERS + 0.4]), np.full((6, 4), 0.3)])
BOX_PRIORS = BOX_PRIORS.reshape(1, 2, -1)
BOX_SCORES = np.sin(np.arange(36.0) * 7).reshape(2, -1)
LOCATIONS = np.cos(np.arange(48.0) * 5 + 1).reshape(2, -1)
OBJECTS = np.array(
    [
        [0, 1, 0, 0, 0, 0.4, 0.5, 0],
        [0, 2, 0, 0.5, 0.6, 0.9, 0.9, 0],
        [1, 1, 0, 0.1, 0.1, 0.5, 0.4, 1],
    ]
).reshape(1, 1, -1, 8)

WINDOWS = [
    f"num_output: 4 kernel_size: 3 group: 2 pad: 1 stride: 2 {WB}",
    f"num_output: 3 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 0 pad_w: 1 {WB}",
    f"num_output: 2 kernel_size: 2 dilation: 2 force_nd_im2col: true bias_term: false {WB}",
    f"num_output: 2 kernel_size: 3 pad: 1 axis: -2 {WB}",
    f"num_output: 2 kernel_size: 3 stride: 2 pad_t: 1 pad_l: 2 pad_b: 2 pad_r: 0 {WB}",
    f"num_output: 2 kernel_size: 2 dilation_h: 2 dilation_w: 1 pad: 1 {WB}",
]
VOLUME = apart(1, 2, 3, 4, 4)
VOLUME_WINDOWS = [
    "num_output: 2 kernel_depth: 2 kernel_size: 3 temporal_stride: 1 temporal_pad: 1 stride: 2 "
    f"pad: 1 {WB}",
    f"num_output: 2 kernel_shape {{ dim: 1 dim: 2 dim: 3 }} pad_shape {{ dim: 0 dim: 1 dim: 1 }} "
    f"stride_shape {{ dim: 2 }} {WB}",
]
NORMALIZATIONS = [
    f"normalization: {mode}"
    for mode in ("FULL", "VALID", "BATCH_SIZE", "NONE", "PRE_FIXED pre_fixed_normalizer: 5")
]


def rows(field: str, bottoms: Sequence[Any], *options: str) -> list[tuple[str, Sequence[Any]]]:
    """Return a row with the same bottoms for each of several options of a field."""
    return [(f"{field} {{ {option} }}", bottoms) for option in options]


def with_in_place(
    field: str, bottoms: Sequence[Any], *options: str
) -> list[tuple[str, Sequence[Any]]]:
    """Return the rows of each option with another top, and then in place."""
    return [*rows(field, bottoms, *options), *rows(f"{IN_PLACE} {field}", bottoms, *options)]


# type -> (prototxt, bottoms[, phase, passes and options of check_gradients])
SOFTMAX_LOSSES = [
    (f"softmax_param {{ axis: {axis} }} loss_param {{ {mode} {ignore} }}", [scores, labels])
    for mode in (*NORMALIZATIONS, "normalize: true", "normalize: false", "")
    for ignore in ("", "ignore_label: 0")
    for axis, scores, labels in ((-2, SCORES, CLASSES), (-1, SCORES_2D, LABELS))
] + [
    ("loss_weight: 3", [SCORES, CLASSES]),
    ("loss_param { label_smoothing: 0.1 }", [SCORES, CLASSES]),
    ("loss_param { weight_by_label_freqs: true class_weighting: 0.5 class_weighting: 2 "
     "class_weighting: 1 class_weighting: 0.2 }", [SCORES, CLASSES]),
]  # fmt: skip

CONVOLUTIONS = [
    *rows("convolution_param", [IMAGE], *WINDOWS),
    *rows("convolution_param", [VOLUME], *VOLUME_WINDOWS),
]

GRADIENT_TABLE: Table = {
    "Convolution": CONVOLUTIONS,
    "Deconvolution": CONVOLUTIONS,
    "ConvolutionDepthwise": rows(
        "convolution_param", [IMAGE], f"num_output: 4 kernel_size: 3 {WB}"
    ),
    "DepthwiseConvolution": rows(
        "convolution_param", [IMAGE], f"num_output: 8 group: 4 kernel_size: 3 {WB}"
    ),
    "NdConvolution": rows(
        "convolution_param", [VOLUME],
        f"num_output: 2 kernel_shape {{ dim: 2 dim: 3 dim: 1 }} {WB}",
    ),
    "NdPooling": rows("pooling_param", [VOLUME], "kernel_shape { dim: 1 dim: 2 dim: 2 }"),
    "Im2col": [
        *rows(
            "convolution_param", [IMAGE],
            "kernel_size: 2 stride: 2 pad: 1 dilation: 2",
            "kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0 force_nd_im2col: "
            "true",
            "kernel_size: 2 axis: 2",
            "kernel_size: 2 pad_t: 1 pad_l: 0 pad_b: 0 pad_r: 2 dilation_h: 2 dilation_w: 1",
        ),
        *rows(
            "convolution_param", [VOLUME],
            "kernel_shape { dim: 1 dim: 2 dim: 2 } stride_shape { dim: 1 } pad_shape { dim: 1 "
            "dim: 0 dim: 1 }",
            "kernel_depth: 2 kernel_size: 2 temporal_stride: 2 temporal_pad: 1",
        ),
    ],
    "Interp": [
        ("interp_param { height: 3 width: 7 }", [IMAGE]),
        ("interp_param { zoom_factor: 2 pad_beg: -1 pad_end: -1 }", [IMAGE]),
        ("interp_param { use_blob_size: true }", [IMAGE, np.zeros((1, 1, 7, 2))]),
        ("interp_param { shrink_factor: 2 }", [IMAGE]),
        ("interp_param { shrink_factor: 2 zoom_factor: 3 }", [IMAGE]),
    ],
    "Pooling": [
        *rows(
            "pooling_param", [IMAGE],
            "pool: MAX kernel_size: 3 stride: 2 pad: 1",
            "pool: AVE kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR",
            "pool: AVE kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 3 pad_h: 1 pad_w: 1 "
            "round_mode: CEIL",
            "pool: AVE_EXC_PAD kernel_size: 3 stride: 2 pad_t: 1 pad_l: 0 pad_b: 0 pad_r: 2",
            "pool: AVE kernel_size: 3 stride: 2 pad_t: 1 pad_l: 0 pad_b: 2 pad_r: 1",
            "pool: MAX kernel_size: 2 stride: 2 pad_b: 1 pad_r: 1 round_mode: FLOOR",
            "pool: AVE kernel_size: 3 pad: 1 avg_include_pad: false",
        ),
        *rows(
            "pooling_param", [VOLUME],
            "pool: MAX kernel_size_3d: [1, 2, 3] stride_3d: [1, 2, 1] pad_3d: [0, 1, 1]",
            "pool: AVE kernel_size: 2 stride_shape { dim: 1 dim: 2 dim: 2 }",
            "pool: AVE kernel_depth: 2 kernel_size: 3 stride: 2 pad: 1 temporal_stride: 2 "
            "temporal_pad: 1 round_mode: FLOOR",
            "pool: AVE_EXC_PAD kernel_shape { dim: 2 dim: 2 dim: 3 } pad_shape { dim: 1 dim: 0 "
            "dim: 1 }",
            "pool: MAX global_pooling: true",
        ),
        ("pooling_param { pool: MAX global_pooling: true }", [IMAGE]),
        ("pooling_param { pool: AVE global_pooling: true }", [IMAGE]),
        ("pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }", [abs(IMAGE)]),
        ("pooling_param { pool: STOCHASTIC kernel_size: 2 }", [abs(IMAGE)], {"phase": "TEST"}),
    ],
    "Reorg": [
        ("reorg_param { stride: 2 }", [IMAGE[..., :2]]),
        ("reorg_param { stride: 2 reverse: true }", [IMAGE]),
    ],
    "SPP": [
        (f"spp_param {{ pyramid_height: {n} pool: {pool} }}", [apart(1, 2, 4, 5)])
        for n, pool in ((1, "AVE"), (2, "MAX"), (2, "AVE"))
    ]
    + [("spp_param { pyramid_height: 1 pool: STOCHASTIC }", [abs(FLAT[None])])],
    "Upsample": [
        ("upsample_param { scale: 3 }", [IMAGE]),
        ("upsample_param { scale: 2 pad_out_h: true pad_out_w: true }",
         [apart(1, 1, 2, 2), [[[[0, 2], [4, 8]]]]]),
        ("upsample_param { scale_h: 2 scale_w: 3 }", [apart(1, 1, 2, 2), [[[[0, 5], [13, 23]]]]]),
        ("upsample_param { upsample_h: 3 upsample_w: 4 }",
         [apart(1, 1, 2, 2), [[[[0, 3], [7, 11]]]]]),
    ],
    "AbsVal": [("", [ROWS])],
    "BNLL": [("", [ROWS]), (IN_PLACE, [ROWS])],
    "Clip": with_in_place("clip_param", [ROWS], "min: -0.81 max: 0.49"),
    "Dropout": [
        (f"{place} dropout_param {{ dropout_ratio: 0.3 {fields} }}", [ROWS], {"phase": phase})
        for place in ("", IN_PLACE)
        for phase in ("TRAIN", "TEST")
        for fields in ("", "scale_train: false", "sample_weights_test: true")
    ],
    "ELU": with_in_place("elu_param", [ROWS], "alpha: 0.4", "alpha: 0", "alpha: -0.4"),
    "Exp": with_in_place("exp_param", [ROWS], "", "base: 2 scale: -0.5 shift: 0.3"),
    "GELU": [("", [ROWS]), (IN_PLACE, [ROWS])],
    "HardSwish": [("", [2.2 * ROWS]), (IN_PLACE, [2.2 * ROWS])],
    "Log": with_in_place("log_param", [ROWS], "shift: 3", "base: 10 scale: -0.5 shift: 2"),
    "Power": with_in_place(
        "power_param", [ROWS], "power: 3 scale: 0.5 shift: 2", "power: -0.5 shift: 3", "power: 0",
        "",
    ),
    "PReLU": with_in_place("prelu_param", [FLAT], "filler { value: 0.6 }", "channel_shared: true"),
    "ReLU": [
        ("relu_param { negative_slope: 0.3 }", [ROWS]),
        (f"{IN_PLACE} relu_param {{ negative_slope: -0.3 }}", [ROWS]),
        ("relu_param { relu6: true }", [5 * ROWS]),
        (f"{IN_PLACE} relu_param {{ relu6: true negative_slope: 0.3 }}", [5 * ROWS]),
        (IN_PLACE, [ROWS]),
    ],
    "ReLU6": [("relu6_param { negative_slope: 0.3 }", [5 * ROWS]), (IN_PLACE, [5 * ROWS])],
    "Sigmoid": [("", [ROWS]), (IN_PLACE, [ROWS])],
    "Swish": [("swish_param { beta: 1.7 }", [ROWS]), (IN_PLACE, [ROWS])],
    "TanH": [("", [ROWS]), (IN_PLACE, [ROWS])],
    "BatchNorm": [
        (f"{place} batch_norm_param {{ {fields} eps: 0.1 moving_average_fraction: 0.5 }}",
         [IMAGE], {"check_params": scaled and [3, 4]})
        for place in ("", IN_PLACE)
        for fields, scaled in (
            ("", False),
            ("scale_bias: true", True),
            (f"use_global_stats: false {filler('scale', 'bias')}", True),
        )
    ],
    "BN": [
        (f"bn_param {{ {filler('scale', 'shift')} bn_mode: LEARN }}", [IMAGE]),
        (f"bn_param {{ {filler('scale', 'shift')} bn_mode: INFERENCE }}", [IMAGE]),
        (f"bn_param {{ {filler('slope', 'bias')} momentum: 0.5 eps: 0.01 }}", [IMAGE],
         {"check_params": [0, 1]}),
        (f"bn_param {{ {filler('slope', 'bias')} frozen: true }}", [IMAGE],
         {"check_params": False}),
    ],
    "LRN": rows(
        "lrn_param", [IMAGE], "local_size: 3 alpha: 2 beta: 0.6 k: 1.5",
        "local_size: 3 alpha: 2 beta: 0.6 norm_region: WITHIN_CHANNEL",
        "norm_region: ACROSS_CHANNELS",
    ),
    "MVN": [
        ("", [IMAGE]),
        ("mvn_param { across_channels: true }", [IMAGE]),
        ("mvn_param { normalize_variance: false across_channels: true }", [IMAGE]),
    ],
    "Normalize": [
        (f"norm_param {{ eps: 0.1 {filler('scale')} {fields} }}", [IMAGE[:, :2, :3]])
        for fields in ("", "across_spatial: false", "channel_shared: false",
                       "across_spatial: false channel_shared: false")
    ],
    "Softmax": with_in_place("softmax_param", [FLAT], "axis: 1", "axis: 0", "axis: -1"),
    "Axpy": [("", [apart(2, 4), IMAGE, apart(2, 4, 4, 3)])],
    "Bias": [
        *with_in_place("bias_param", [FLAT], *(
            f"axis: {axis} num_axes: {n} {FILLER}" for axis, n in ((1, 1), (0, -1), (-1, 1), (1, 0))
        )),
        ("bias_param { axis: 0 }", [FLAT, apart(2, 3)]),
    ],
    "Eltwise": [
        (f"{place} eltwise_param {{ {fields} }}", list(apart(n, 3, 4)))
        for n in (2, 3)
        for place in ("", " ".join(f'bottom: "{name}"' for name in "xyz"[:n]) + ' top: "x"')
        for fields in ("operation: PROD", "operation: PROD stable_prod_grad: false",
                       "operation: SUM", f"coeff: -2 coeff: 0.5 {'coeff: 3' * (n - 2)}",
                       "operation: MAX")
    ],
    "Embed": [
        (f"embed_param {{ num_output: 2 input_dim: 4 {fields} {WB} }}", [[[0, 3], [3, 1]]])
        for fields in ("", "bias_term: false")
    ],
    "InnerProduct": [
        (f"inner_product_param {{ num_output: 3 {fields} {WB} }}", [FLAT])
        for fields in ("", "axis: 2", "axis: -1 transpose: true", "axis: 0", "bias_term: false",
                       "transpose: true bias_term: false")
    ],
    "LSTM": [(RECURRENT, [STEPS, CONT]), (RECURRENT, [STEPS, CONT, apart(2, 5)])],
    "LSTMUnit": [("", [apart(1, 3, 2), apart(1, 3, 8), [[0.0, 1, 1]]])],
    "RNN": [(RECURRENT, [STEPS, CONT]), (RECURRENT, [STEPS, CONT, apart(2, 5)])],
    "Reduction": [
        (f"reduction_param {{ operation: {operation} axis: {axis} coeff: -0.4 }}", [FLAT])
        for operation in ("SUM", "ASUM", "SUMSQ", "MEAN")
        for axis in (0, 1, -1)
    ],
    "Scale": [
        (f"{place} scale_param {{ axis: {axis} num_axes: {n} bias_term: {bias} "
         f"{FILLER} {filler('bias')} }}", [FLAT])
        for place in ("", IN_PLACE)
        for axis, n, bias in ((1, 1, "true"), (0, -1, "false"), (-1, 1, "true"), (1, 0, "true"))
    ]
    + [
        (f"scale_param {{ axis: 0 bias_term: {bias} {filler('bias')} }}", [FLAT, apart(2, 3)])
        for bias in ("true", "false")
    ],
    "BatchReindex": [("", [FLAT, [1, 0, 1, 1]])],
    "Concat": [
        (f"concat_param {{ {field} }}", [FLAT, apart(2, 3, 4)])
        for field in ("axis: 0", "axis: -1", "concat_dim: 1")
    ],
    "Crop": [
        ("crop_param { axis: 1 offset: 1 offset: 2 offset: 0 }", [IMAGE, np.zeros((2, 2, 2, 3))]),
        ("crop_param { axis: 2 offset: 1 }", [IMAGE, np.zeros((2, 4, 3, 2))]),
    ],
    "Filter": [('top: "a" top: "b"', [ROWS, apart(3, 2), [1, 0, 1]], {"passes": 1})],
    "Permute": [("permute_param { order: 2 order: 0 }", [FLAT])],
    "ShuffleChannel": [("shuffle_channel_param { group: 2 }", [IMAGE])],
    "Slice": [
        (f"slice_param {{ {fields} }} {' '.join(f'top: {n!r}' for n in names)}", [IMAGE])
        for fields, names in (
            ("axis: -2 slice_point: 1 slice_point: 3", "abc"),
            ("slice_dim: 1", "ab"),
        )
    ],
    "Split": [('top: "a" top: "b" top: "c"', [ROWS])],
    "Tile": [(f"tile_param {{ axis: {axis} tiles: 3 }}", [FLAT]) for axis in (0, 1, -1)],
    "CenterLoss": [
        (f"center_loss_param {{ num_output: 4 axis: 1 {filler('center')} }}", [ROWS, LABELS],
         {"check_params": False})
    ],
    "ContrastiveLoss": [
        (f"contrastive_loss_param {{ margin: {margin} legacy_version: {legacy} }}",
         [ROWS, 0.3 * apart(3, 4), [1, 0, 0]], {"threshold": 1e-3})
        for margin, legacy in ((1.3, "false"), (4, "false"), (9, "true"))
    ],
    "EuclideanLoss": [("", [ROWS, apart(3, 4)]), ("loss_weight: -2.5", [ROWS, apart(3, 4)])],
    "FocalLoss": [
        (f"focal_loss_param {{ {fields} }}", [SCORES, CLASSES])
        for fields in ("alpha: 0.7 gamma: 3", "gamma: 0")
    ]
    + [
        (f"loss_param {{ ignore_label: 1 {mode} }} {axis}", [scores, labels])
        for mode in (*NORMALIZATIONS, "normalize: true", "normalize: false")
        for axis, scores, labels in (
            ("softmax_param { axis: -2 }", SCORES, CLASSES),
            ("", ROWS, WHOLE_TARGETS),
        )
    ],
    "HingeLoss": [
        (f"hinge_loss_param {{ norm: {norm} }}", [1.3 * SCORES_2D, LABELS]) for norm in ("L1", "L2")
    ],
    "InfogainLoss": [
        (f"infogain_loss_param {{ axis: {axis} }} loss_param {{ {mode} {ignore} }}",
         [scores, labels, abs(apart(4, 4))])
        for mode in NORMALIZATIONS
        for ignore in ("", "ignore_label: 0")
        for axis, scores, labels in ((-2, SCORES, CLASSES), (-1, SCORES_2D, LABELS))
    ],
    "MultinomialLogisticLoss": [("", [TARGETS, LABELS])],
    "SigmoidCrossEntropyLoss": [
        (f"loss_param {{ {mode} {ignore} }}", [ROWS, targets])
        for mode in (*NORMALIZATIONS, "normalize: true", "normalize: false", "")
        for ignore, targets in (("", TARGETS), ("ignore_label: 2", WHOLE_TARGETS))
    ],
    "SmoothL1Loss": [
        ("smooth_l1_loss_param { sigma: 1.5 }", [ROWS, apart(3, 4)]),
        ("", [ROWS, apart(3, 4), WHOLE_TARGETS > 0, apart(3, 4)]),
    ],
    "SoftmaxWithLoss": [*SOFTMAX_LOSSES, ("", [SCORES, CLASSES, abs(apart(3, 2))])],
    "SmoothL1LossOHEM": [
        (f"loss_param {{ {mode} }}", [ROWS, -0.4 * ROWS, *weights])
        for mode in (*NORMALIZATIONS, "normalize: true", "normalize: false")
        for weights in ([], [WHOLE_TARGETS])
    ]
    + [("smooth_l1_loss_param { sigma: 1.5 }", [ROWS, -0.4 * ROWS])],
    "SoftmaxWithLossOHEM": SOFTMAX_LOSSES,
    "TripletLoss": [("triplet_loss_param { margin: 0.8 }", [ROWS, apart(3, 4), apart(3, 4)])],
    "PSROIPooling": [
        ("psroi_pooling_param { spatial_scale: 0.0625 output_dim: 1 group_size: 2 }",
         [IMAGE, REGIONS])
    ],
    "ROIAlign": [
        (f"roi_pooling_param {{ pooled_h: 2 pooled_w: 3 spatial_scale: 0.0625 {more} }}",
         [IMAGE, [*REGIONS, [0, 30, 30, 20, 50]]])
        for more in ("", "pad_ratio: 0.3")
    ],
    "ROIPooling": [
        ("roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.0625 }", [IMAGE, REGIONS]),
        ("roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.0625 pad_ratio: 0.2 }",
         [IMAGE, REGIONS]),
    ],
    "MultiBoxLoss": [
        (f"multibox_loss_param {{ num_classes: 3 {fields} }} loss_param {{ {divisor} }}",
         [LOCATIONS, BOX_SCORES, BOX_PRIORS, OBJECTS])
        for fields, divisor in (
            ("", ""),
            ("code_type: CENTER_SIZE loc_weight: 2 match_type: BIPARTITE", "normalization: FULL"),
            ("code_type: CORNER_SIZE loc_loss_type: L2 encode_variance_in_target: true", ""),
            ("conf_loss_type: LOGISTIC mining_type: NONE", "normalization: BATCH_SIZE"),
            ("mining_type: HARD_EXAMPLE sample_size: 4", "normalization: NONE"),
            ("mining_type: NONE", "normalization: PRE_FIXED pre_fixed_normalizer: 5"),
            ("overlap_threshold: 0.4 do_neg_mining: true neg_pos_ratio: 1 neg_overlap: 0.4",
             "normalize: true"),
            ("background_label_id: 0 use_difficult_gt: false", "normalize: false"),
            ("use_prior_for_matching: false nms_param { nms_threshold: 0.4 }", ""),
            ("use_prior_for_nms: true nms_param { nms_threshold: 0.4 top_k: 3 }", ""),
            ("ignore_cross_boundary_bbox: true map_object_to_agnostic: true", ""),
            ("bp_inside: true", ""),
        )
    ]
    + [
        ("multibox_loss_param { num_classes: 3 share_location: false mining_type: NONE }",
         [np.repeat(LOCATIONS, 3, axis=1), BOX_SCORES, BOX_PRIORS, OBJECTS])
    ],
}  # fmt: skip


MAP, INPUT = np.zeros((2, 8, 3, 4)), np.zeros((2, 3, 60, 100))
CORNERS = RNG.uniform(0, 0.6, (6, 2))
PRIORS = np.stack([np.concatenate([CORNERS, CORNERS + 0.3], axis=1), np.full((6, 4), 0.1)])
DETECTIONS = np.hstack(
    [[[i, k, 0.9 - 0.1 * i] for i, k in ((0, 1), (0, 2), (1, 1))], OBJECTS[0, 0, :, 3:7]]
)
DETECTIONS = DETECTIONS[None, None]
CONFIDENCES = RNG.dirichlet(np.ones(3), (2, 6)).reshape(2, -1)

OTHERS_TABLE: Table = {
    "Threshold": [("threshold_param { threshold: 0.4 }", [ROWS])],
    "Flatten": [("flatten_param { axis: 1 end_axis: -2 }", [INPUT])],
    "Reshape": [("reshape_param { shape { dim: 0 dim: -1 dim: 2 } }", [INPUT])],
    "Squeeze": [("squeeze_param { axis: 1 }", [np.expand_dims(ROWS, axis=1)])],
    "Silence": [("", [ROWS, FLAT])],
    "Accuracy": [
        ("accuracy_param { top_k: 2 }", [SCORES, CLASSES]),
        ('top: "all" top: "each" accuracy_param { ignore_label: 1 }', [SCORES, CLASSES]),
    ],
    "ArgMax": [
        ("argmax_param { top_k: 2 out_max_val: true }", [FLAT]),
        ("argmax_param { axis: 1 }", [FLAT]),
    ],
    "SegAccuracy": [("", [apart(2, 3, 4, 2), RNG.integers(0, 3, (2, 1, 4, 2))])],
    "Input": [('top: "a" input_param { shape { dim: 2 dim: 3 } }', [])],
    "DummyData": [
        ('top: "a" dummy_data_param { shape { dim: 2 } data_filler { type: "gaussian" } }', [])
    ],
    "Parameter": [('top: "a" parameter_param { shape { dim: 2 dim: 3 } }', [])],
    "PriorBox": [
        ("prior_box_param { min_size: 30 max_size: 60 aspect_ratio: 2 variance: 0.1 "
         "variance: 0.2 variance: 0.3 variance: 0.4 }", [MAP, INPUT])
    ],
    "DetectionOutput": [
        ("detection_output_param { num_classes: 3 nms_param { nms_threshold: 0.4 } }",
         [apart(2, 24), CONFIDENCES, PRIORS.reshape(1, 2, -1)])
    ],
    "DetectionEvaluate": [
        ("detection_evaluate_param { num_classes: 3 }", [DETECTIONS, OBJECTS]),
        ("detection_evaluate_param { num_classes: 3 evaluate_difficult_gt: false "
         "overlap_threshold: 0.3 }", [DETECTIONS, OBJECTS]),
    ],
    "BoxGroupOutput": [
        (f"{tops} bbox_reg_param {{ {STATISTICS} cls_aware: false }} box_group_output_param {{ "
         f"fg_thr: {least} iou_thr: 0.4 nms_type: 'IOU' field_whr: 3 field_xyr: 1.5 "
         "max_nms_num: 20 max_post_nms_num: 6 min_size: 3 "
         "box_group_param { field_h: 8 field_w: 6 field_h: 9 field_w: 12 stride: 4 } "
         "box_group_param { field_h: 20 field_w: 20 stride: 8 } }",
         [apart(4, 2, 3, 3) / 3, apart(4, 4, 3, 3) / 3, apart(2, 2, 2, 1) / 3, apart(2, 4, 2, 1)])
        for tops in ('top: "a"', 'top: "a" top: "b"')
        for least in (0.4, 9)
    ],
    "DecodeBBox": [
        (f"bbox_reg_param {{ {STATISTICS} }}", [apart(2, 8), REGIONS], {"phase": "TEST"}),
        ("", [apart(2, 8), REGIONS]),
        ("decode_bbox_param { gt_iou_thr: 0.8 }",
         [apart(2, 8), REGIONS, [[1, 0, 0, 5, 5, 0.9], [1, 0, 0, 5, 5, 0.3]]]),
    ],
    "YoloDetectionOutput": [
        ("yolo_detection_output_param { num_classes: 3 num_box: 2 biases: [1.1, 1.2, 3.4, 2.5] "
         f"confidence_threshold: {least} nms_threshold: 0.3 side: 3 coords: 4 "
         "label_map_file: 'names' }", [apart(2, 16, 3, 3)])
        for least in (0.2, 2)
    ],
    "Yolov3DetectionOutput": [
        ("yolov3_detection_output_param { num_classes: 3 num_box: 2 mask_group_num: 2 "
         "biases: [10, 14, 23, 27, 37, 58, 81, 82] mask: [2, 3, 0, 1] anchors_scale: [32, 16] "
         f"confidence_threshold: {least} nms_threshold: 0.3 }}",
         [apart(2, 16, 2, 2), apart(2, 16, 3, 3)])
        for least in (0.2, 2)
    ],
    "Proposal": [
        (f"{tops} proposal_param {{ feat_stride: 4 base_size: 4 ratio: 1 scale: 1 scale: 2 "
         "min_size: 3 nms_thresh: 0.4 }",
         [apart(2, 4, 3, 3), apart(2, 8, 3, 3) / 3, [[12, 12, 1], [10, 12, 1.5]]])
        for tops in ('top: "a"', 'top: "a" top: "b"')
    ],
    "BoxAnnotatorOHEM": [
        ('top: "a" top: "b" box_annotator_ohem_param { roi_per_img: 1 }',
         [REGIONS, [[0.2], [0.5]], [[1], [2]], apart(2, 8)])
    ],
}  # fmt: skip


def _cases(table: Table) -> dict[str, list[LayerCase]]:
    cases: dict[str, list[LayerCase]] = {name: [] for name in table}
    for name, some in table.items():
        for number, (fields, bottoms, *options) in enumerate(some):
            check: dict[str, Any] = dict(*options)
            phase, passes = check.pop("phase", "TRAIN"), check.pop("passes", 0)
            values = tuple(np.asarray(value, np.float64) for value in bottoms)
            cases[name].append(LayerCase(name, number, fields, values, phase, passes, check))
    return cases


CASES = _cases(GRADIENT_TABLE)  # layer type with a gradient -> its cases, one for every option

OTHER_CASES = _cases(OTHERS_TABLE)
"""Layer type without a gradient -> its cases; types that read or write files have none."""
