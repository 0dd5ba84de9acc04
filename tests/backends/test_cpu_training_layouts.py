"""Nets in training on device cpu: gradients of convolutions lie as what they are gradients of."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.layout import innermost
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

BLOCK = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 32 dim: 14 dim: 14 } } }
layer { name: "before" type: "Convolution" bottom: "x" top: "before" convolution_param {
  num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "before" top: "before" }
layer { name: "one" type: "Convolution" bottom: "before" top: "one" convolution_param {
  num_output: 96 kernel_size: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "two" type: "Convolution" bottom: "before" top: "two" convolution_param {
  num_output: 96 kernel_size: 3 pad: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "one" bottom: "two" top: "sum" }
"""


def test_gradients_of_strided_convolutions_lie_as_the_images_do():
    with Net(parse_text(BLOCK, NetParameter), "TRAIN", device="cpu", seed=1) as net:
        net.blobs["x"].data[...] = 1.0
        net.forward()
        net.blobs["sum"].diff[...] = 1.0
        net.backward()

        image = net.blobs["before"].data_memory.layout
        read = [name for name in net.blobs if "split" in name]
        gradients = [net.blobs[name].diff_memory.layout for name in read]

    assert gradients == [image, image]


GROUPS = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 32 dim: 14 dim: 11 } } }
layer { name: "before" type: "Convolution" bottom: "x" top: "before" convolution_param {
  num_output: CHANNELS kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "before" top: "before" }
layer { name: "groups" type: "Convolution" bottom: "before" top: "groups" convolution_param {
  num_output: CHANNELS group: GROUP kernel_size: 3 pad: 1 WINDOW
  weight_filler { type: "xavier" } } }
layer { name: "then" type: "ReLU" bottom: "groups" top: "groups" }
layer { name: "y" type: "Convolution" bottom: "groups" top: "y" convolution_param {
  num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
"""


@pytest.mark.parametrize("window", ["", "stride: 2", "bias_term: false"], ids=str)
@pytest.mark.parametrize(
    ("channels", "group", "code"),
    [
        (64, 2, ("winograd", "igemm llvm")), (64, 16, "grouped llvm"), (64, 64, "depthwise llvm"),
        (2, 2, "depthwise llvm"), (7, 7, "depthwise llvm"),
    ],
)  # fmt: skip
def test_groups_train_in_kernels_of_our_own_as_in_portable_code(channels, group, code, window):
    text = GROUPS.replace("WINDOW", window).replace("GROUP", str(group))
    text = text.replace("CHANNELS", str(channels))
    results, codes = [], {}
    for options in ({"device": "cpu"}, {"device": "numpy", "optimize": False}):
        with Net(parse_text(text, NetParameter), "TRAIN", seed=1, **options) as net:
            rng = np.random.default_rng(2)
            for _ in range(5):  # the last are replayed; parameters are taken again
                net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
                net.forward()
                net.blobs["y"].diff[...] = rng.normal(size=net.blobs["y"].shape)
                net.clear_param_diffs()
                net.backward()
                for blob in net.params["groups"]:
                    blob.data[...] = 1.1 * blob.data + 0.1
            blobs = [net.blobs["x"].diff, net.blobs["y"].data]
            blobs += [blob.diff for name in ("before", "groups") for blob in net.params[name]]
            results.append([np.array(blob) for blob in blobs])
            codes = codes or {layer.name: layer for layer in report(net.plan)}

    assert codes["groups"].code.startswith(code)
    assert codes["groups"].backward_code.startswith(code)
    for one, other in zip(*results, strict=True):
        assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()


SHUFFLED = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 48 dim: 9 dim: 7 } } }
layer { name: "z" type: "Input" top: "z" input_param { shape { dim: 2 dim: 120 dim: 9 dim: 7 } } }
layer { name: "one" type: "Convolution" bottom: "x" top: "one" convolution_param {
  num_output: 96 group: 2 kernel_size: 1 bias_term: false weight_filler { type: "msra" } } }
layer { name: "relu" type: "ReLU" bottom: "one" top: "one" }
layer { name: "joined" type: "Concat" bottom: "x" bottom: "one" top: "joined" }
layer { name: "two" type: "Convolution" bottom: "joined" top: "two" convolution_param {
  num_output: 120 group: 3 kernel_size: 1 bias_term: false weight_filler { type: "msra" } } }
layer { name: "y" type: "Eltwise" bottom: "z" bottom: "two" top: "y" }
"""


def test_what_joins_images_with_their_channels_last_and_others_in_c_order_has_them_last():
    results, last = [], []
    for options in ({"device": "cpu"}, {"device": "numpy", "optimize": False}):
        with Net(parse_text(SHUFFLED, NetParameter), "TRAIN", seed=1, **options) as net:
            rng = np.random.default_rng(2)
            for name in net.inputs:
                net.blobs[name].data[...] = rng.normal(size=net.blobs[name].shape)
            for _ in range(2):  # the second gradient is added to the first
                net.forward()
                layouts = [net.blobs[name].data_memory.layout for name in ("joined", "y")]
                last = last or [layout is innermost(layout.shape, 1) for layout in layouts]
                net.blobs["y"].diff[...] = rng.normal(size=net.blobs["y"].shape)
                net.backward()
            blobs = [net.blobs["y"].data, net.blobs["x"].diff, net.blobs["z"].diff]
            blobs += [net.params[name][0].diff for name in ("one", "two")]
            results.append([np.array(blob) for blob in blobs])

    assert last == [True, True]
    for one, other in zip(*results, strict=True):
        assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()
