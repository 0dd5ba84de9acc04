"""Nets for images of any size."""

import numpy as np
import pytest
from expect_error import expect_error
from exporting import expect_same, net

from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop import export_onnx
from demitasse.interop.onnx_export.converters import ANY_SIZE, CONVERTERS

pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")

IMAGES = {"data": (1, 3, 20, 17)}
POOL = 'layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { %s } }'
TOWER = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "relu" type: "PReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool"
  pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "up" type: "Deconvolution" bottom: "pool" top: "up"
  convolution_param { num_output: 2 kernel_size: 8 stride: 4 } }
layer { name: "cut" type: "Crop" bottom: "up" bottom: "data" top: "cut"
  crop_param { axis: 2 offset: 1 } }
layer { name: "large" type: "Interp" bottom: "cut" top: "large" interp_param { zoom_factor: 2 } }
layer { name: "prob" type: "Softmax" bottom: "large" top: "prob" }
"""


@pytest.mark.parametrize(
    "fields",
    [
        "kernel_size: 2 stride: 2",
        "kernel_size: 3 stride: 2",
        "kernel_size: 3 stride: 2 pad: 1",
        "kernel_size: 5 stride: 3 pad: 2",
        "kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR",
        "pool: AVE kernel_size: 3 stride: 2",
        "pool: AVE kernel_size: 3 stride: 1 pad: 1",
        "pool: AVE kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR",
        "pool: AVE global_pooling: true",
        "pool: STOCHASTIC global_pooling: true",
        "global_pooling: true",
    ],
)
@pytest.mark.parametrize("size", [(20, 17), (21, 18), (22, 19)])
def test_pooling(fields, size, tmp_path):
    expect_same(net(POOL % fields, {"data": (1, 3, *size)}), tmp_path, any_size=True)


def test_a_net_for_images_of_any_size(tmp_path):
    made = net(TOWER, IMAGES)
    done = expect_same(made, tmp_path, any_size=True)
    session = onnxruntime.InferenceSession(done.files[0])

    assert done.inputs == {"data": ["batch", 3, "height", "width"]}
    for size in ((2, 3, 31, 40), (1, 3, 24, 25), (3, 3, 20, 17)):
        images = np.random.default_rng(0).standard_normal(size, np.float32)
        [prob] = session.run(None, {"data": images})
        np.testing.assert_allclose(prob, made.predict(images)["prob"], rtol=1e-4, atol=1e-5)


def test_a_net_for_multiples_of_its_strides(tmp_path):
    text = """
    layer { name: "pool" type: "Pooling" bottom: "data" top: "pool"
      pooling_param { kernel_size: 2 stride: 2 } }
    layer { name: "up" type: "Deconvolution" bottom: "pool" top: "up"
      convolution_param { num_output: 3 kernel_size: 2 stride: 2 } }
    layer { name: "both" type: "Concat" bottom: "up" bottom: "data" top: "both" }
    """

    done = expect_same(net(text, {"data": (1, 3, 16, 12)}), tmp_path, any_size=True)

    assert done.outputs == {"both": ["batch", 6, "height", "width"]}


def test_a_batch_of_one_size_contradicts_it(tmp_path):
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="batch", got=4):
        expect_same(net(TOWER, IMAGES), tmp_path, any_size=True, batch=4)


def test_fully_connected_layers_have_one_size(tmp_path):
    text = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
      inner_product_param { num_output: 2 } }"""

    with expect_error(NetError, ErrorCode.SHAPE_MISMATCH, field="height", mentions="'ip'"):
        expect_same(net(text, IMAGES), tmp_path, any_size=True)


def test_layers_that_are_written_for_one_size_are_named(tmp_path):
    text = """
    layer { name: "flat" type: "Flatten" bottom: "data" top: "flat" }
    layer { name: "shuffle" type: "ShuffleChannel" bottom: "data" top: "shuffle"
      shuffle_channel_param { group: 3 } }
    """

    with expect_error(NetError, ErrorCode.UNSUPPORTED, layers=["flat", "shuffle"]):
        expect_same(net(text, IMAGES), tmp_path, any_size=True)


@pytest.mark.parametrize(
    "fields", ["pool: AVE kernel_size: 3 stride: 2 pad: 1", "kernel_size: 2 stride: 3"]
)
def test_what_onnx_would_divide_otherwise_is_refused(fields, tmp_path):
    with expect_error(NetError, ErrorCode.UNSUPPORTED, layer="pool"):
        expect_same(net(POOL % fields, IMAGES), tmp_path, any_size=True)


@pytest.mark.parametrize("fields", ["kernel_size: 2", "global_pooling: true"])
def test_masks_of_poolings_are_refused(fields, tmp_path):
    text = (POOL % fields).replace('top: "pool"', 'top: "pool" top: "mask"')

    with expect_error(NetError, ErrorCode.UNSUPPORTED, layer="pool"):
        expect_same(net(text, IMAGES), tmp_path, any_size=True)


def test_types_for_any_size_are_types_that_are_written():
    assert set(CONVERTERS) >= ANY_SIZE


@pytest.mark.parametrize("pads", ["pad_beg: -1", "pad_end: -2", "pad_beg: -1 pad_end: -3"])
def test_pixels_are_cut_off_all_sides_of_the_size_at_hand(pads, tmp_path):
    layer = 'layer { name: "large" type: "Interp" bottom: "data" top: "large" interp_param { %s } }'
    made = net(layer % f"zoom_factor: 2 {pads}", {"data": (2, 3, 10, 7)})

    expect_same(made, tmp_path, any_size=True)


@pytest.mark.parametrize("fields", ["axis: 0 top_k: 2", "axis: 3 top_k: 2", "top_k: 2"])
def test_indices_of_largest_values_are_those_of_the_size_at_hand(fields, tmp_path):
    layer = 'layer { name: "best" type: "ArgMax" bottom: "data" top: "best" argmax_param { %s } }'
    made = net(layer % fields, {"data": (2, 3, 20, 17)})
    export_onnx(made, None, tmp_path / "net.onnx", any_size=True)
    x = np.random.default_rng(0).standard_normal((5, 3, 52, 49), np.float32)

    [found] = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"data": x})

    np.testing.assert_array_equal(found, made(x))
