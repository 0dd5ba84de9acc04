"""Each layer type as other frameworks compute it, against what it computes here."""

import numpy as np
import pytest
from expect_error import expect_error
from exporting import expect_same_torch, message, net
from goldens import error, golden_layers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from layer_examples import EXAMPLES

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_export import export_onnx
from demitasse.interop.onnx_export.converters import CONVERTERS

MAPS = {"x": (2, 6, 7, 5)}
UNLIKE_RANDOM = {
    "DetectionOutput", "Dropout", "Proposal", "PSROIPooling", "ROIPooling",
    "BoxGroupOutput", "DecodeBBox", "ROIAlign", "YoloDetectionOutput", "Yolov3DetectionOutput",
}  # fmt: skip
"""Types whose example wants inputs that random ones are not; they have tests of their own."""

LEFT = {"accuracy", "contrastive", "euclidean", "hinge", "infogain", "multinomial", "sigmoidce",
        "softmaxloss"}  # fmt: skip
"""How names of recorded cases begin that are of losses and metrics, which are left out."""


def layer(kind, fields="", bottoms=("x",), tops=("y",), name="layer"):
    blobs = "".join(f' bottom: "{one}"' for one in bottoms)
    blobs += "".join(f' top: "{one}"' for one in tops)
    return f'layer {{ name: "{name}" type: "{kind}"{blobs} {fields} }}\n'


@pytest.mark.parametrize("name", sorted(set(CONVERTERS) & set(EXAMPLES) - UNLIKE_RANDOM))
def test_the_example_of_every_type(name, tmp_path, expect_same):
    example = EXAMPLES[name]

    expect_same(net(example.text, example.inputs), tmp_path)


@pytest.mark.parametrize(
    "case", [case for case in golden_layers() if not case.name.startswith(tuple(LEFT))], ids=str
)
def test_recorded_cases(case, tmp_path, expect_same):
    made = type(case)(case.path, "TEST", 1, case.has_loss, backward=False).net(device="numpy")
    first = {key.split("/", 1)[1]: value for key, value in case.arrays.items()
             if key.startswith(("in/", "in0/"))}  # fmt: skip
    for key, value in case.arrays.items():
        if key.startswith("param/"):
            _, owner, number = key.split("/")
            made.params[owner][int(number)].data[...] = value
    for name, value in first.items():
        made.set_input(name, value)
    made.reshape()

    done = expect_same(made, tmp_path, first)

    if done.files[0].suffix == ".onnx" and case.phase == "TEST" and case.forwards == 1:
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(done.files[0])
        outputs = session.run(None, {one.name: first[one.name] for one in session.get_inputs()})
        for found, value in zip(session.get_outputs(), outputs, strict=True):
            want = case.arrays[f"out/{found.name.split('@')[0]}"]
            assert error(value, want) < 1e-5


# -- windows -----------------------------------------------------------------------------------

windows = st.fixed_dictionaries(
    {
        "kernel": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "stride": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "pad": st.tuples(st.integers(0, 3), st.integers(0, 3)),
        "size": st.tuples(st.integers(1, 9), st.integers(1, 9)),
    }
)


def pair(field, values):
    return f"{field}_h: {values[0]} {field}_w: {values[1]} "


@settings(max_examples=60, deadline=None)
@example(
    window={"kernel": (3, 1), "stride": (1, 1), "pad": (2, 0), "size": (1, 1)}, method="MAX",
    mode="CEIL", mask=True,
)  # fmt: skip
@given(window=windows, method=st.sampled_from(["MAX", "AVE"]),
       mode=st.sampled_from(["CEIL", "FLOOR"]), mask=st.booleans())  # fmt: skip
def test_pooling_of_any_window(window, method, mode, mask, tmp_path_factory, expect_same):
    kernel, size = window["kernel"], window["size"]
    pad = tuple(min(p, k - 1) for p, k in zip(window["pad"], kernel, strict=True))
    if any(k > n + 2 * p for k, n, p in zip(kernel, size, pad, strict=True)):
        return
    beyond = any(s > k for s, k in zip(window["stride"], kernel, strict=True))
    tops = ("y", "mask") if mask and method == "MAX" and not beyond else ("y",)
    fields = (
        f"pooling_param {{ pool: {method} round_mode: {mode} {pair('kernel', kernel)}"
        f"{pair('stride', window['stride'])}{pair('pad', pad)}}}"
    )

    pooling = net(layer("Pooling", fields, tops=tops), {"x": (2, 3, *size)})
    folder = tmp_path_factory.mktemp("pooling")
    wide = any(2 * p > k for p, k in zip(pad, kernel, strict=True))  # of no PyTorch module
    if wide and "mask" in tops and expect_same is expect_same_torch:
        with expect_error(NetError, ErrorCode.UNSUPPORTED, layers=["layer"]):
            expect_same(pooling, folder)
    else:
        expect_same(pooling, folder)


SIDES = ("pad_t", "pad_l", "pad_b", "pad_r")


def sides(pads):
    return " ".join(f"{name}: {pad}" for name, pad in zip(SIDES, pads, strict=True))


@settings(max_examples=60, deadline=None)
@given(window=windows, method=st.sampled_from(["MAX", "AVE", "AVE_EXC_PAD"]),
       mode=st.sampled_from(["CEIL", "FLOOR"]),
       after=st.tuples(st.integers(0, 3), st.integers(0, 3)))  # fmt: skip
def test_pooling_with_other_pads_after_the_image(
    window, method, mode, after, tmp_path_factory, expect_same
):
    kernel, size = window["kernel"], window["size"]
    pads = [min(p, k - 1) for p, k in zip((*window["pad"], *after), kernel * 2, strict=True)]
    padded = [n + pads[i] + pads[i + 2] for i, n in enumerate(size)]
    if any(k > n for k, n in zip(kernel, padded, strict=True)):
        return
    fields = (
        f"pooling_param {{ pool: {method} round_mode: {mode} {pair('kernel', kernel)}"
        f"{pair('stride', window['stride'])}{sides(pads)} }}"
    )

    expect_same(
        net(layer("Pooling", fields), {"x": (2, 3, *size)}), tmp_path_factory.mktemp("pooling")
    )


@pytest.mark.parametrize("method", ["MAX", "AVE", "AVE_EXC_PAD"])
@pytest.mark.parametrize(
    "window",
    [
        "kernel_size: [1, 2, 2] stride: [1, 2, 2]",
        "kernel_size_3d: [3, 2, 3] stride_3d: 2 pad_3d: [1, 0, 1]",
        "kernel_depth: 2 kernel_size: 3 temporal_stride: 1 stride: 2 pad: 1 round_mode: FLOOR",
        "global_pooling: true",
    ],
)
def test_pooling_of_volumes(method, window, tmp_path, expect_same):
    fields = f"pooling_param {{ pool: {method} {window} }}"

    expect_same(net(layer("Pooling", fields), {"x": (2, 3, 4, 6, 7)}), tmp_path)


@settings(max_examples=40, deadline=None)
@given(window=windows, kind=st.sampled_from(["Convolution", "Deconvolution"]),
       after=st.tuples(st.integers(0, 3), st.integers(0, 3)))  # fmt: skip
def test_convolution_with_other_pads_after_the_image(
    window, kind, after, tmp_path_factory, expect_same
):
    kernel = window["kernel"]
    pads = [min(p, k - 1) for p, k in zip((*window["pad"], *after), kernel * 2, strict=True)]
    if kind == "Deconvolution":
        pads = [pad // 2 for pad in pads]
    size = [max(n, k) for n, k in zip(window["size"], kernel, strict=True)]
    fields = (
        f"convolution_param {{ num_output: 4 {pair('kernel', kernel)}"
        f"{pair('stride', window['stride'])}{sides(pads)} }}"
    )

    expect_same(
        net(layer(kind, fields), {"x": (2, 3, *size)}), tmp_path_factory.mktemp("convolution")
    )


@pytest.mark.parametrize("slope", [0, 0.25])
def test_a_relu_that_ends_at_6(slope, tmp_path, expect_same):
    fields = f"relu_param {{ relu6: true negative_slope: {slope} }}"
    scaled = layer("Power", "power_param { scale: 9 }", tops=("x9",), name="scale")

    made = net(scaled + layer("ReLU", fields, bottoms=("x9",)), MAPS)

    expect_same(made, tmp_path)


@settings(max_examples=40, deadline=None)
@given(window=windows, kind=st.sampled_from(["Convolution", "Deconvolution"]),
       group=st.sampled_from([1, 2, 6]), dilation=st.integers(1, 3),
       bias=st.booleans())  # fmt: skip
def test_convolution_of_any_window(
    window, kind, group, dilation, bias, tmp_path_factory, expect_same
):
    kernel, stride, pad = window["kernel"], window["stride"], window["pad"]
    extent = [dilation * (k - 1) + 1 for k in kernel]
    least = [max(1, e - 2 * p) for e, p in zip(extent, pad, strict=True)]
    size = [max(n, m) for n, m in zip(window["size"], least, strict=True)]
    if kind == "Deconvolution":
        pad = tuple(min(p, (e - 1) // 2) for p, e in zip(pad, extent, strict=True))
    fields = (
        f"convolution_param {{ num_output: 6 group: {group} dilation: {dilation} "
        f"bias_term: {str(bias).lower()} {pair('kernel', kernel)}{pair('stride', stride)}"
        f"{pair('pad', pad)}}}"
    )

    expect_same(
        net(layer(kind, fields), {"x": (2, 6, *size)}), tmp_path_factory.mktemp("convolution")
    )


def test_convolution_over_no_axes_is_refused(tmp_path, expect_same):
    flat = net(layer("Convolution", "convolution_param { num_output: 2 kernel_size: 3 }"),
               {"x": (2, 3)})  # fmt: skip

    with expect_error(NetError, ErrorCode.UNSUPPORTED, mentions="'layer'"):
        expect_same(flat, tmp_path)


# -- other layers, for each way they can be asked for --------------------------------------------

WAYS = {
    "argmax over everything": ("ArgMax", "argmax_param { top_k: 3 out_max_val: true }"),
    "argmax of rows": ("ArgMax", "argmax_param { axis: -1 top_k: 2 }"),
    "argmax of rows, values": ("ArgMax", "argmax_param { axis: 2 out_max_val: true }"),
    "argmax, values and indices": ("ArgMax", "argmax_param { out_max_val: true }"),
    "batch norm by the batch": ("BatchNorm", "batch_norm_param { use_global_stats: false }"),
    "batch norm of NVCaffe": ("BatchNorm", "batch_norm_param { scale_bias: true }"),
    "bias of one number": ("Bias", "bias_param { num_axes: 0 }"),
    "bias of two axes": ("Bias", "bias_param { axis: 1 num_axes: 2 }"),
    "BN of SegNet": ("BN", "bn_param { bn_mode: INFERENCE }"),
    "BN of SegNet by the batch": ("BN", "bn_param { bn_mode: LEARN }"),
    "deconvolution of one axis": (
        "Deconvolution", "convolution_param { num_output: 4 kernel_size: 2 axis: 2 }"),
    "ELU of another slope": ("ELU", "elu_param { alpha: 0.3 }"),
    "exp of base 2": ("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }"),
    "flatten in the middle": ("Flatten", "flatten_param { axis: 1 end_axis: 2 }"),
    "im2col of dilated taps": (
        "Im2col", "convolution_param { kernel_size: 2 dilation: 2 stride: 2 pad: 1 }"),
    "inner product of one row": ("InnerProduct", "inner_product_param { num_output: 3 axis: 0 }"),
    "inner product of the last axis": (
        "InnerProduct", "inner_product_param { num_output: 3 axis: -1 }"),
    "inner product, transposed": (
        "InnerProduct", "inner_product_param { num_output: 3 transpose: true bias_term: false }"),
    "interp, cut and shrunk": (
        "Interp", "interp_param { shrink_factor: 2 pad_beg: -1 pad_end: -1 }"),
    "interp to one row": ("Interp", "interp_param { height: 1 width: 9 }"),
    "log of base 10": ("Log", "log_param { base: 10 scale: 0.1 shift: 20 }"),
    "LRN of other numbers": ("LRN", "lrn_param { local_size: 3 alpha: 2 beta: 0.5 k: 2 }"),
    "LRN within channels": (
        "LRN", "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 alpha: 2 }"),
    "MVN across channels": ("MVN", "mvn_param { across_channels: true }"),
    "MVN, mean alone": ("MVN", "mvn_param { normalize_variance: false }"),
    "normalize everything": ("Normalize", "norm_param { channel_shared: true }"),
    "permute": ("Permute", "permute_param { order: 0 order: 2 }"),
    "pooling, global": ("Pooling", "pooling_param { pool: AVE global_pooling: true }"),
    "pooling, global maximum": ("Pooling", "pooling_param { global_pooling: true }"),
    "power, constant": ("Power", "power_param { power: 0 }"),
    "power, linear": ("Power", "power_param { scale: 2 shift: -1 }"),
    "power, nothing": ("Power", ""),
    "power, scale alone": ("Power", "power_param { scale: -2 }"),
    "power, square": ("Power", "power_param { power: 2 shift: 1 }"),
    "PReLU with one slope": ("PReLU", "prelu_param { channel_shared: true }"),
    "reduction to a number": ("Reduction", "reduction_param { operation: ASUM coeff: 0.5 }"),
    "reduction, mean": ("Reduction", "reduction_param { operation: MEAN axis: 2 }"),
    "reduction, squares": ("Reduction", "reduction_param { operation: SUMSQ axis: -1 coeff: 3 }"),
    "leaky ReLU": ("ReLU", "relu_param { negative_slope: 0.1 }"),
    "leaky ReLU6": ("ReLU6", "relu6_param { negative_slope: 0.1 }"),
    "reshape, kept and inferred": (
        "Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 5 } }"),
    "reshape of some axes": (
        "Reshape", "reshape_param { axis: 1 num_axes: 2 shape { dim: 2 dim: 21 } }"),
    "reshape with a new axis": (
        "Reshape", "reshape_param { axis: 1 num_axes: 0 shape { dim: 1 } }"),
    "scale from the last axis": (
        "Scale", "scale_param { axis: -1 bias_term: true }"),
    "scale of one number": ("Scale", "scale_param { num_axes: 0 bias_term: true }"),
    "scale of all axes": ("Scale", "scale_param { axis: 1 num_axes: -1 }"),
    "shuffled channels": ("ShuffleChannel", "shuffle_channel_param { group: 3 }"),
    "softmax of the last axis": ("Softmax", "softmax_param { axis: -1 }"),
    "SPP of means": ("SPP", "spp_param { pyramid_height: 2 pool: AVE }"),
    "SPP of one level": ("SPP", "spp_param { pyramid_height: 1 }"),
    "swish": ("Swish", "swish_param { beta: 2 }"),
    "tile of channels": ("Tile", "tile_param { axis: 1 tiles: 3 }"),
    "tile of the batch": ("Tile", "tile_param { axis: 0 tiles: 2 }"),
    "upsample": ("Upsample", "upsample_param { scale: 3 }"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way(way, tmp_path, expect_same):
    kind, fields = WAYS[way]

    expect_same(net(layer(kind, fields), MAPS), tmp_path)


@pytest.mark.parametrize("fields", ["", "argmax_param { out_max_val: true }"])
def test_largest_of_one_value_each(fields, tmp_path, expect_same):
    expect_same(net(layer("ArgMax", fields), {"x": (4,)}), tmp_path)


def test_stochastic_pooling_is_what_is_expected_of_it(tmp_path, expect_same):
    fields = "pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }"
    x = np.random.default_rng(0).random((2, 3, 7, 8), np.float32)
    x[0, 0, :4, :4] = 0

    expect_same(net(layer("Pooling", fields), {"x": x.shape}), tmp_path, {"x": x})


@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_eltwise_of_three(operation, tmp_path, expect_same):
    fields = f"eltwise_param {{ operation: {operation} }}"

    expect_same(net(layer("Eltwise", fields, "abc"), dict.fromkeys("abc", (2, 3))), tmp_path)


def test_eltwise_with_coefficients(tmp_path, expect_same):
    fields = "eltwise_param { coeff: 1 coeff: -0.5 }"

    expect_same(net(layer("Eltwise", fields, "ab"), dict.fromkeys("ab", (2, 3))), tmp_path)


def test_a_number_without_axes(tmp_path, expect_same):
    power = layer("Power", "power_param { power: 2 scale: 3 }")

    expect_same(net(power, {"x": ()}), tmp_path)


@pytest.mark.parametrize(
    ("kind", "fields", "second"),
    [
        ("Scale", "scale_param { axis: 0 }", (2, 6)),
        ("Scale", "scale_param { axis: 0 bias_term: true }", (2, 6)),
        ("Scale", "scale_param { axis: 2 }", (7, 5)),
        ("Scale", "scale_param { axis: 0 }", ()),
        ("Bias", "bias_param { axis: 0 }", (2, 6, 7)),
    ],
)
def test_operands_that_are_blobs(kind, fields, second, tmp_path, expect_same):
    expect_same(net(layer(kind, fields, ("x", "s")), {**MAPS, "s": second}), tmp_path)


@pytest.mark.parametrize("fields", ["", "axis: 1 slice_point: 2", "axis: 0", "slice_dim: 1"])
def test_slice(fields, tmp_path, expect_same):
    done = expect_same(
        net(layer("Slice", f"slice_param {{ {fields} }}", tops=("a", "b")), MAPS), tmp_path
    )

    assert set(done.outputs) == {"a", "b"}


def test_slice_of_a_batch_at_a_point(tmp_path, expect_same):
    fields = "slice_param { axis: 0 slice_point: 1 }"

    done = expect_same(net(layer("Slice", fields, tops=("a", "b")), MAPS), tmp_path)

    assert done.outputs["b"][0] == "batch - 1"


@pytest.mark.parametrize("fields", ["axis: 0", "axis: -1", "concat_dim: 1"])
def test_concat(fields, tmp_path, expect_same):
    text = layer("Concat", f"concat_param {{ {fields} }}", "ab")

    expect_same(net(text, {"a": (2, 3, 4), "b": (2, 3, 4)}), tmp_path)


@pytest.mark.parametrize(
    ("fields", "like"),
    [("offset: 1", (9, 9, 5, 4)), ("axis: 1 offset: 2 offset: 0 offset: 1", (1, 3, 7, 4)),
     ("axis: 0", (1, 2, 3, 4))],
)  # fmt: skip
def test_crop(fields, like, tmp_path, expect_same):
    text = layer("Crop", f"crop_param {{ {fields} }}", ("x", "like"))

    expect_same(net(text, {**MAPS, "like": like}), tmp_path)


def test_axpy_in_place_of_its_third_bottom(tmp_path, expect_same):
    text = layer("Axpy", "", ("a", "x", "b"), ("y",))

    expect_same(net(text, {"a": (2, 6, 1, 1), "x": (2, 6, 3, 3), "b": (2, 6, 3, 3)}), tmp_path)


def test_interp_to_the_size_of_a_blob(tmp_path, expect_same):
    text = layer("Interp", "interp_param { use_blob_size: true }", ("x", "like"))

    expect_same(net(text, {**MAPS, "like": (1, 1, 11, 13)}), tmp_path)


def test_pooling_and_its_way_back(tmp_path, expect_same):
    text = layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", tops=("p", "mask"))
    text += layer("Upsample", "upsample_param { upsample_h: 7 upsample_w: 5 }", ("p", "mask"),
                  name="up")  # fmt: skip

    expect_same(net(text, MAPS), tmp_path)


def test_items_that_are_chosen(tmp_path, expect_same):
    text = layer("Filter", "", ("x", "chosen"))
    given = {"x": np.arange(12, dtype=np.float32).reshape(4, 3),
             "chosen": np.array([0, 1, 0, 1], np.float32)}  # fmt: skip

    expect_same(net(text, {"x": (4, 3), "chosen": (4,)}), tmp_path, given)


def test_items_in_another_order(tmp_path, expect_same):
    text = layer("BatchReindex", "", ("x", "order"))
    given = {"x": np.arange(12, dtype=np.float32).reshape(4, 3),
             "order": np.array([3, 0, 0], np.float32)}  # fmt: skip

    expect_same(net(text, {"x": (4, 3), "order": (3,)}), tmp_path, given)


def test_words_are_looked_up(tmp_path, expect_same):
    text = layer("Embed", "embed_param { input_dim: 9 num_output: 4 bias_term: false }")

    expect_same(net(text, {"x": (5, 2)}), tmp_path, {"x": np.arange(10.0).reshape(5, 2) % 9})


# -- sequences ---------------------------------------------------------------------------------

T, N, H = 5, 2, 4


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("exposed", [False, True])
def test_sequences_that_begin_in_the_middle(kind, static, exposed, tmp_path, expect_same):
    states = (["h", "c"] if kind == "LSTM" else ["h"]) if exposed else []
    bottoms = ["x", "cont", *(["s"] if static else []), *states]
    fields = f"recurrent_param {{ num_output: {H} expose_hidden: {str(exposed).lower()} }}"
    shapes = {"x": (T, N, 3, 2), "cont": (T, N), "s": (N, 3), "h": (1, N, H), "c": (1, N, H)}
    shapes = {name: shapes[name] for name in bottoms}
    random = np.random.default_rng(1)
    given = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    given["cont"] = np.array([[0, 1], [1, 1], [1, 0], [0, 1], [1, 1]], np.float32)
    tops = ["y", *(f"last_{name}" for name in states)]

    expect_same(net(layer(kind, fields, bottoms, tops), shapes), tmp_path, given)


# -- detection ---------------------------------------------------------------------------------

PRIORS, CLASSES = 30, 4


def detections(fields, images=2, shared=True):
    """A DetectionOutput, and random boxes for it that overlap."""
    text = layer(
        "DetectionOutput",
        f"detection_output_param {{ num_classes: {CLASSES} {fields} }}",
        ("location", "score", "prior"),
    )
    random = np.random.default_rng(5)
    corner = random.random((PRIORS, 2)) * 0.7
    boxes = np.concatenate([corner, corner + 0.05 + 0.25 * random.random((PRIORS, 2))], axis=1)
    prior = np.stack([boxes.reshape(-1), np.tile([0.1, 0.1, 0.2, 0.2], PRIORS)])[None]
    score = random.random((images, PRIORS, CLASSES))
    given = {
        "location": random.standard_normal((images, PRIORS * (1 if shared else CLASSES) * 4)),
        "score": (score / score.sum(axis=2, keepdims=True)).reshape(images, -1),
        "prior": prior,
    }
    return text, {name: array.astype(np.float32) for name, array in given.items()}


@pytest.mark.parametrize(
    "fields",
    [
        "keep_top_k: 7 confidence_threshold: 0.2 nms_param { nms_threshold: 0.4 top_k: 12 }",
        "code_type: CENTER_SIZE keep_top_k: 9 nms_param { nms_threshold: 0.3 }",
        "code_type: CORNER_SIZE background_label_id: 2 nms_param { nms_threshold: 0.45 }",
        "variance_encoded_in_target: true keep_top_k: -1 nms_param { nms_threshold: 0.5 top_k: 5 }",
        "code_type: CENTER_SIZE share_location: false nms_param { nms_threshold: 0.4 top_k: 20 }",
        "background_label_id: -1 confidence_threshold: 0.3 nms_param { nms_threshold: 0.6 }",
        "confidence_threshold: 0.99 nms_param { nms_threshold: 0.4 }",
    ],
)
def test_detections(fields, tmp_path, expect_same):
    text, given = detections(fields, shared="share_location: false" not in fields)
    shapes = {name: array.shape for name, array in given.items()}

    expect_same(net(text, shapes), tmp_path, given)


GROUPS = """box_group_param { field_w: 12 field_h: 10 field_w: 9 field_h: 16 stride: 8 }
    box_group_param { field_w: 30 field_h: 24 stride: 16 }"""
REGRESSION = "bbox_reg_param { bbox_mean: [0, 0.1, 0, 0.2] bbox_std: [0.1, 0.1, 0.2, 0.3] }"


@pytest.mark.parametrize(
    "fields",
    [
        "fg_thr: 0.3 iou_thr: 0.5 min_size: 3 max_post_nms_num: 5 max_nms_num: 30",
        "fg_thr: 0 iou_thr: 0.7 min_size: 12",
        "fg_thr: 2",
    ],
)
@pytest.mark.parametrize("tops", [("y",), ("y", "scored")])
def test_regions_of_several_maps(fields, tops, tmp_path, expect_same):
    random = np.random.default_rng(5)
    given = {
        "s0": random.random((4, 3, 4, 4)), "c0": 3 * random.standard_normal((4, 4, 4, 4)),
        "s1": random.random((2, 3, 2, 3)), "c1": 3 * random.standard_normal((2, 4, 2, 3)),
    }  # fmt: skip
    given = {name: array.astype(np.float32) for name, array in given.items()}
    text = layer("BoxGroupOutput", f"{REGRESSION} box_group_output_param {{ {fields} {GROUPS} }}",
                 tuple(given), tops)  # fmt: skip

    expect_same(net(text, {name: a.shape for name, a in given.items()}), tmp_path, given)


def test_layers_after_regions_take_any_number_of_them(tmp_path, expect_same):
    random = np.random.default_rng(5)
    given = {
        "s0": random.random((4, 3, 4, 4)), "c0": 3 * random.standard_normal((4, 4, 4, 4)),
        "s1": random.random((2, 3, 2, 3)), "c1": 3 * random.standard_normal((2, 4, 2, 3)),
        "x": random.standard_normal((2, 3, 16, 14)),
    }  # fmt: skip
    given = {name: array.astype(np.float32) for name, array in given.items()}
    maps, shapes = tuple(given)[:4], {name: a.shape for name, a in given.items()}
    text = layer("BoxGroupOutput", f"{REGRESSION} box_group_output_param {{ {GROUPS} }}",
                 maps, ("rois",), "regions")  # fmt: skip
    fields = "roi_pooling_param { pooled_h: 2 pooled_w: 2 }"
    text += layer("ROIAlign", fields, ("x", "rois"), ("pooled",), "pool")
    text += layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", ("pooled",))

    expect_same(net(text, shapes), tmp_path, given)


def test_moved_regions(tmp_path, expect_same):
    codes = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)
    given = {"codes": codes, "rois": regions(20)}

    made = net(layer("DecodeBBox", REGRESSION, tuple(given)), {"codes": (20, 8), "rois": (20, 5)})

    expect_same(made, tmp_path, given)


@pytest.mark.parametrize("ratio", [0, 0.2])
def test_corners_of_regions(ratio, tmp_path, expect_same):
    x = np.random.default_rng(4).standard_normal((2, 3, 16, 14), np.float32)
    given = {"x": x, "rois": regions(20)}
    fields = f"pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 pad_ratio: {ratio}"

    made = net(layer("ROIAlign", f"roi_pooling_param {{ {fields} }}", tuple(given)),
               {"x": x.shape, "rois": (20, 5)})  # fmt: skip

    expect_same(made, tmp_path, given)


def test_pooled_regions_that_are_widened(tmp_path, expect_same):
    x = np.random.default_rng(4).standard_normal((2, 3, 16, 14), np.float32)
    given = {"x": x, "rois": regions(20)}
    fields = "pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 pad_ratio: 0.21"

    made = net(layer("ROIPooling", f"roi_pooling_param {{ {fields} }}", tuple(given)),
               {"x": x.shape, "rois": (20, 5)})  # fmt: skip

    expect_same(made, tmp_path, given)


@pytest.mark.parametrize("least", [0.3, 2])
def test_detections_of_yolo_2(least, tmp_path, expect_same):
    maps = np.random.default_rng(1).standard_normal((2, 16, 4, 4)).astype(np.float32)
    fields = f"num_classes: 3 num_box: 2 biases: [1.1, 1.2, 2.4, 2.5] confidence_threshold: {least}"

    made = net(layer("YoloDetectionOutput", f"yolo_detection_output_param {{ {fields} }}"),
               {"x": maps.shape})  # fmt: skip

    expect_same(made, tmp_path, {"x": maps})


def test_the_number_of_detections_of_yolo_is_declared_as_unknown(tmp_path):
    onnx = pytest.importorskip("onnx")
    fields = "num_classes: 3 num_box: 2 biases: [1.1, 1.2, 2.4, 2.5]"
    made = net(layer("YoloDetectionOutput", f"yolo_detection_output_param {{ {fields} }}"),
               {"x": (2, 16, 4, 4)})  # fmt: skip

    export_onnx(made, None, tmp_path / "net.onnx")

    [output] = onnx.load(tmp_path / "net.onnx").graph.output
    sizes = [one.dim_param or one.dim_value for one in output.type.tensor_type.shape.dim]
    assert sizes == [1, 1, "layer_count", 7]


def test_detections_of_yolo_3(tmp_path, expect_same):
    random = np.random.default_rng(2)
    given = {name: random.standard_normal((2, 14, *size)).astype(np.float32)
             for name, size in (("a", (2, 3)), ("b", (4, 6)))}  # fmt: skip
    fields = """num_classes: 2 num_box: 2 mask_group_num: 2 confidence_threshold: 0.4
        biases: [10, 14, 23, 27, 37, 58, 81, 82] mask: [2, 3, 0, 1] anchors_scale: [32, 16]"""

    made = net(layer("Yolov3DetectionOutput", f"yolov3_detection_output_param {{ {fields} }}",
                     tuple(given)), {name: a.shape for name, a in given.items()})  # fmt: skip

    expect_same(made, tmp_path, given)


PROPOSAL = "proposal_param { feat_stride: 8 ratio: 1 ratio: 2 scale: 2 min_size: 4 %s }"


@pytest.mark.parametrize(
    "fields",
    [
        "pre_nms_topn: 40 post_nms_topn: 10 nms_thresh: 0.5",
        "pre_nms_topn: 0 post_nms_topn: 0 nms_thresh: 0.7",
    ],
)
@pytest.mark.parametrize("images", [1, 2])
def test_proposals(fields, images, tmp_path, expect_same):
    text = layer("Proposal", PROPOSAL % fields, ("score", "delta", "info"), ("rois", "chances"))
    random = np.random.default_rng(2)
    given = {
        "score": random.random((images, 4, 5, 6), np.float32),
        "delta": random.standard_normal((images, 8, 5, 6)).astype(np.float32) / 4,
        "info": np.tile(np.array([40, 48, 1.5], np.float32), (images, 1)),
    }
    shapes = {name: array.shape for name, array in given.items()}

    expect_same(net(text, shapes), tmp_path, given)


def regions(count):
    random = np.random.default_rng(3)
    corners = random.integers(0, 60, (count, 2, 2))
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1) + 0.5
    boxes[0] = [50, 50, 40, 40]  # inside out
    boxes[1] = [70, 70, 90, 90]  # beyond the map
    items = random.integers(0, 2, (count, 1))
    return np.concatenate([items, boxes], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "fields", "channels"),
    [
        ("ROIPooling", "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 }", 4),
        ("PSROIPooling",
         "psroi_pooling_param { output_dim: 2 group_size: 3 spatial_scale: 0.25 }", 18),
    ],
)  # fmt: skip
def test_regions(kind, fields, channels, tmp_path, expect_same):
    x = np.random.default_rng(4).standard_normal((2, channels, 16, 14), np.float32)
    given = {"x": x, "rois": regions(20)}

    shapes = {"x": x.shape, "rois": (20, 5)}
    expect_same(net(layer(kind, fields, ("x", "rois")), shapes), tmp_path, given)


def test_regions_of_proposals_are_pooled(tmp_path, expect_same):
    first = layer("Proposal", PROPOSAL % "post_nms_topn: 12", ("score", "delta", "info"), ["rois"])
    pool = "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.125 }"
    text = first + layer("ROIPooling", pool, ("score", "rois"), name="pool")
    text += layer("InnerProduct", "inner_product_param { num_output: 3 }", ("y",), ("classes",),
                  name="classes")  # fmt: skip
    random = np.random.default_rng(2)
    given = {
        "score": random.random((1, 4, 5, 6), np.float32),
        "delta": random.standard_normal((1, 8, 5, 6)).astype(np.float32) / 4,
        "info": np.array([[40, 48, 1]], np.float32),
    }

    done = expect_same(net(text, {name: array.shape for name, array in given.items()}), tmp_path,
                       given)  # fmt: skip

    assert done.outputs == {"classes": ["layer_count", 3]}


def test_an_unknown_type_is_refused(tmp_path, expect_same):
    with expect_error(NetError, ErrorCode.UNSUPPORTED, layers=["layer"], mentions="Theirs"):
        expect_same(message(layer("Theirs"), MAPS), tmp_path)
