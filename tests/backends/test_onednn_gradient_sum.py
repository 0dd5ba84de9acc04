"""Gradients of sums, ReLUs, Concats and Splits as one: the bits of each by itself."""

import numpy as np
import pytest
from expect_error import expect_error
from lowered import LAYOUTS, NEEDS_KERNELS, build, our_kernels, run

from demitasse import Net
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.step import Declined
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

pytestmark = NEEDS_KERNELS

X = """force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 16 dim: 9 dim: 9 } } }
"""
CONVOLUTION = """layer { name: "%s" type: "Convolution" bottom: "%s" top: "%s" convolution_param {
  num_output: %d kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "joined" top: "joined" }\n'
SUM = 'layer { name: "joined" type: "Eltwise" bottom: "one" bottom: "two" top: "joined" %s }\n'
CONCAT = 'layer { name: "joined" type: "Concat" bottom: "one" bottom: "two" top: "joined" %s }\n'
END = 'layer { name: "end" type: "Eltwise" bottom: "a" bottom: "b" top: "end" }\n'


def net_text(join, *, relu=True, readers="ab", channels=32):
    """Two convolutions, what joins them, and convolutions that read that."""
    text = X + CONVOLUTION % ("one", "x", "one", 32) + CONVOLUTION % ("two", "x", "two", channels)
    text += join + (RELU if relu else "")
    text += "".join(CONVOLUTION % (name, "joined", name, 16) for name in readers)
    return text + END if readers == "ab" else text


RESIDUAL = net_text(SUM % "")
DENSE = net_text(CONCAT % "", relu=False, channels=16)
NETS = {
    "sum, relu, split": (RESIDUAL, 3),
    "sum, split": (net_text(SUM % "", relu=False), 2),
    "sum, relu": (net_text(SUM % "", readers="a"), 2),
    "relu, split": (
        X + CONVOLUTION % ("joined", "x", "joined", 32) + RELU
        + CONVOLUTION % ("a", "joined", "a", 16) + CONVOLUTION % ("b", "joined", "b", 16) + END,
        2,
    ),
    "relu, split of four": (net_text(SUM % "", readers="abcd"), 3),
    "concat, split": (DENSE, 2),
    "concat, relu, split": (net_text(CONCAT % "", channels=16), 3),
}  # fmt: skip


@pytest.fixture
def apart(monkeypatch):
    """Let each layer compute its own gradient in nets that are made from now on."""

    def begin():
        def refuse(backend, steps):
            raise Declined

        monkeypatch.setattr(OnednnBackend, "fuse_gradients", refuse)

    return begin


def joined(net):
    return [
        entry.gradient_group.count for entry in net.plan.entries if entry.gradient_group is not None
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NETS)
def test_all_blobs_have_the_bits_of_layers_apart(name, layout, apart):
    text, count = NETS[name]
    with our_kernels(16, layout), build(text) as net:
        together, counts = run(net), joined(net)
        codes = [layer.backward_code for layer in report(net.plan)]
    apart()
    with our_kernels(16, layout), build(text) as net:
        one_by_one, none = run(net), joined(net)

    if layout == "blocks":
        # a Concat may be in another layout than its readers otherwise
        assert max(counts) == count
        assert sum("handed on" in code for code in codes) >= count
    assert not none
    for key, array in one_by_one.items():
        np.testing.assert_array_equal(together[key], array, err_msg=key)


@pytest.mark.parametrize("name", ["sum, relu, split", "concat, split"])
def test_parameters_have_them_where_gradients_share_memory(name, apart):
    def gradients():
        with build(NETS[name][0], keep_blobs="outputs") as net:
            for _ in range(5):  # from the third on, calls are made again
                net.clear_param_diffs()
                net.forward()
                net.blobs["end"].diff[...] = 1.0
                net.backward()
            return [blob.diff.copy() for blobs in net.params.values() for blob in blobs]

    together = gradients()
    apart()

    for one, other in zip(together, gradients(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["sum, relu, split", "concat, relu, split"])
@pytest.mark.parametrize("cut", ["joined", "relu"])
def test_a_pass_may_end_and_begin_between_them(name, cut):
    whole, parts = {}, {}
    for found, cuts in ((whole, ()), (parts, (cut,))):
        with build(NETS[name][0]) as net:
            net.forward()
            net.blobs["end"].diff[...] = 1.0
            start = None
            for end in cuts:
                net.backward(end=end)
                start = net.layer_names[net.layer_names.index(end) - 1]
            net.backward(start=start)
            found |= {key: blob.diff.copy() for key, blob in net.blobs.items()}

    for key, array in whole.items():
        np.testing.assert_array_equal(parts[key], array, err_msg=key)


def test_gradients_that_lie_over_each_other_are_computed_apart(monkeypatch):
    from demitasse.backends.onednn.steps import gradient_sum as handed_on

    found = []
    for spoils in (False, True):
        monkeypatch.setattr(handed_on, "spoils", lambda *_, answer=spoils, **__: answer)
        with build(RESIDUAL) as net:
            found.append(run(net))

    for key, array in found[0].items():
        np.testing.assert_array_equal(found[1][key], array, err_msg=key)


@pytest.mark.parametrize(
    ("join", "why"),
    [
        (SUM % "eltwise_param { coeff: 1 coeff: -2 }", "coefficients"),
        (CONCAT % "concat_param { axis: 2 }", "axis"),
    ],
)
def test_others_are_left_to_their_own(join, why):
    with build(net_text(join, relu=False)) as net:
        net.forward()
        entries = net.plan.entries
        last = next(i for i, entry in enumerate(entries) if entry.layer.type == "Split" and i > 2)

        assert entries[last].gradient_group is None
        with expect_error(Declined, mentions=why):
            entries[last].layer.device.backend.fuse_gradients(
                [entry.step for entry in entries[last - 1 : last + 1]]
            )


def test_a_rectifier_elsewhere_is_left_to_its_own():
    text = RESIDUAL.replace('bottom: "joined" top: "joined"', 'bottom: "joined" top: "other"')
    text = text.replace('bottom: "joined" top: "a"', 'bottom: "other" top: "a"')
    text = text.replace('bottom: "joined" top: "b"', 'bottom: "other" top: "b"')
    with Net(parse_text(text, NetParameter), "TRAIN", device="cpu", seed=1) as net:
        net.forward()

        assert not joined(net)


def test_gradients_are_those_of_portable_code():
    with build(RESIDUAL) as net, build(RESIDUAL, optimize=False) as portable:
        ours, wanted = run(net), run(portable)

    for key, array in wanted.items():
        np.testing.assert_allclose(ours[key], array, rtol=2e-3, atol=1e-3, err_msg=key)


@pytest.mark.parametrize("size", ["dim: 3 dim: 6", "dim: 3 dim: 6 dim: 5 dim: 4"])
@pytest.mark.parametrize("readers", ["a", "ab"])
def test_channels_in_c_order_which_a_rectifier_takes_for_one_row(readers, size, apart):
    product = (
        'layer {{ name: "{0}" type: "InnerProduct" bottom: "{1}" top: "{0}" inner_product_param {{'
        ' num_output: 5 weight_filler {{ type: "msra" }} }} }}\n'
    )
    power = 'layer {{ name: "{0}" type: "Power" bottom: "x" top: "{0}" }}\n'
    below = power if size.count("dim") > 2 else product
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {size} }} }} }}\n'
    text = "force_backward: true\n" + text + below.format("one", "x") + below.format("two", "x")
    text += CONCAT % "" + RELU + "".join(product.format(name, "joined") for name in readers)
    with build(text) as net:
        together, counts = run(net), joined(net)
    apart()
    with build(text) as net:
        one_by_one = run(net)

    assert max(counts) == len(readers) + 1
    for key, array in one_by_one.items():
        np.testing.assert_array_equal(together[key], array, err_msg=key)
