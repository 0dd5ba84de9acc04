"""Normalisations of batches in training: kernels of our own beside the portable code."""

import numpy as np
import pytest
from lowered import NEEDS_KERNELS, build, conv, expect_same, layer, net

from demitasse import Net, Solver
from demitasse.core.config import settings
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.plan.report import report

pytestmark = NEEDS_KERNELS

CONVOLUTION = """layer { name: "%s" type: "Convolution" bottom: "%s" top: "%s" convolution_param {
  num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "msra" } bias_term: false } }"""
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "one" top: "%s" }'
SCALE = """layer { name: "scale" type: "Scale" bottom: "%s" top: "%s" %s scale_param {
  bias_term: %s filler { type: "uniform" min: 0.5 max: 2 } } }"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "%s" top: "%s" }'
FROZEN = "param { lr_mult: 0 } param { lr_mult: 0 }"


def solver(middle, last, device, *, batches=1, keep=None, channels=(3, 32)):
    layers = [
        'layer { name: "x" type: "DummyData" top: "x" dummy_data_param {'
        f" shape {{ dim: 3 dim: {channels[0]} dim: 9 dim: 9 }}"
        ' data_filler { type: "gaussian" std: 2 } } }',
        'layer { name: "y" type: "DummyData" top: "y" dummy_data_param { shape { dim: 3 } } }',
        (CONVOLUTION % ("one", "x", "one")).replace("32", str(channels[1])),
        *middle,
        CONVOLUTION % ("two", last, "two"),
        'layer { name: "mean" type: "Pooling" bottom: "two" top: "mean" '
        "pooling_param { pool: AVE global_pooling: true } }",
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "mean" bottom: "y" top: "loss" }',
    ]
    text = (
        'base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001 display: 0 '
        f"iter_size: {batches} snapshot_after_train: false net_param {{ {' '.join(layers)} }}"
    )
    return Solver(parse_text(text, SolverParameter), device=device, seed=2, keep_blobs=keep)


def chain(top, *, scale=True, bias="true", relu=True, frozen=False):
    """BatchNorm from ``one`` to ``top`` and what follows it in place."""
    layers = [NORM % top]
    layers += [SCALE % (top, top, FROZEN if frozen else "", bias)] if scale else []
    layers += [RELU % (top, top)] if relu else []
    return layers


@pytest.fixture(autouse=True)
def _without_winograd():
    """Leave convolutions to implicit GEMM."""
    with settings.override(winograd=False):
        yield


@pytest.mark.parametrize("top", ["one", "normed"], ids=["in place", "elsewhere"])
@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, 1),
        ({"relu": False}, 1),
        ({"scale": False, "relu": False}, 1),
        ({"bias": "false"}, 1),
        ({"frozen": True}, 1),
        ({}, 2),
    ],
    ids=["all", "no relu", "norm alone", "no offsets", "frozen", "two batches"],
)
def test_training_is_the_portable_one(options, batches, top):
    ours, portable = (
        solver(chain(top, **options), top, device, batches=batches) for device in ("cpu", "numpy")
    )
    with ours, portable:
        for _ in range(4):
            ours.step(1)
            portable.step(1)

        for one, other in zip(
            ours.net.learnable_params, portable.net.learnable_params, strict=True
        ):
            np.testing.assert_allclose(one.cpu_data(), other.cpu_data(), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("relu", [True, False], ids=["with ReLU", "without"])
@pytest.mark.parametrize("channels", [20, 50])
def test_channels_that_fill_no_vectors_have_good_code_too(channels, relu):
    middle, shape = chain("one", relu=relu), (32, channels)  # convolved with the channels last
    ours = solver(middle, "one", "cpu", channels=shape)
    wanted = solver(middle, "one", "numpy", channels=shape)

    with ours, wanted:
        for each in (ours, wanted):
            each.step(3)

        layers = report(ours.net.plan)
        assert not any("bnorm:any" in one.code + one.backward_code for one in layers)
        for name, blobs in wanted.net.params.items():
            for blob, want in zip(ours.net.params[name], blobs, strict=True):
                np.testing.assert_allclose(blob.data, want.data, rtol=2e-3, atol=2e-5, err_msg=name)


def test_the_report_names_the_kernels():
    with solver(chain("one"), "one", "cpu") as ours:
        ours.step(1)
        codes = {layer.name: layer for layer in report(ours.net.plan)}

    norm = codes["norm"]
    if "norm llvm" not in norm.code:
        pytest.skip("the library lays images out otherwise on this processor")
    assert norm.backward_code.startswith("norm gradient llvm")


def test_iterations_are_equal_to_the_bit():
    runs = []
    for _ in range(2):
        with solver(chain("one"), "one", "cpu") as ours:
            ours.step(6)
            runs.append([blob.cpu_data().copy() for blob in ours.net.learnable_params])

    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("keep", [None, "outputs"], ids=["all is kept", "outputs are kept"])
@pytest.mark.parametrize("options", [{}, {"relu": False}, {"scale": False}], ids=str)
def test_a_norm_elsewhere_runs_as_one_with_what_follows_and_leaves_its_gradient(options, keep):
    ours, portable = (
        solver(chain("normed", **options), "normed", device, keep=keep)
        for device in ("cpu", "numpy")
    )
    with ours, portable:
        ours.net.forward_backward()
        portable.net.forward_backward()
        group = next(e.group for e in ours.net.plan.entries if e.layer.name == "norm")
        if group is None and "norm llvm" not in report(ours.net.plan)[3].code:
            pytest.skip("the library lays images out otherwise on this processor")

        assert group is not None
        assert group.count == len(chain("normed", **options))
        names = ["one", "normed"] if keep is None else []
        for name in names:
            one, other = ours.net.blobs[name], portable.net.blobs[name]
            np.testing.assert_allclose(one.cpu_data(), other.cpu_data(), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(one.cpu_diff(), other.cpu_diff(), rtol=2e-3, atol=1e-6)
        for one, other in zip(
            ours.net.learnable_params, portable.net.learnable_params, strict=True
        ):
            np.testing.assert_allclose(one.cpu_diff(), other.cpu_diff(), rtol=2e-3, atol=2e-5)


def test_a_second_buffer_counts_where_it_is_and_nowhere_else():
    with solver(chain("one"), "one", "cpu") as ours:
        ours.step(1)
        once = 4 * ours.net.blobs["one"].count

        one, two = (4 * ours.net.params[name][0].count for name in ("one", "two"))
        packed = one + 2 * two  # filters of both forward passes, and of one gradient
        assert once <= ours.net.memory_use.state < 2 * once
        assert ours.net.plan.held - packed < once


def test_sums_of_equal_values_in_c_order_lose_no_digits():
    """The library would add up the 8,640 values of an image one by one: 2e-4 off."""
    text = """force_backward: true
    layer { name: "x" type: "Input" top: "x"
      input_param { shape { dim: 2 dim: 8 dim: 96 dim: 90 } } }
    layer { name: "norm" type: "BatchNorm" bottom: "x" top: "y" }"""
    results = []
    for options in ({"device": "cpu"}, {"device": "numpy", "dtype": "float64"}):
        net = Net(text, "TRAIN", **options)
        rng = np.random.default_rng(0)
        net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
        net.forward()
        net.blobs["y"].diff[...] = rng.normal(size=(2, 8, 1, 1))
        net.backward()
        results.append((net.blobs["y"].data, net.blobs["x"].diff))

    for found, want in zip(*results, strict=True):
        assert np.abs(found - want).max() <= 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("kinds", [["Scale"], ["BatchNorm"], ["BatchNorm", "Scale"]], ids=str)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_a_relu_in_place_leaves_its_gradient_in_the_blob(phase, kinds):
    fields = {"Scale": "scale_param { bias_term: true filler { value: 3 } }", "BatchNorm": ""}
    layers = [
        layer(kind, kind, "y" if number else "x", "y", fields[kind])
        for number, kind in enumerate(kinds)
    ]
    above = conv(20, 'kernel_size: 3 pad: 1 weight_filler { type: "msra" }', bottom="y")
    text = net(*layers, layer("relu", "ReLU", "y", "y"), above, shape=(2, 20, 7, 6))

    expect_same(text, phase=phase, rtol=1e-4)


@pytest.mark.parametrize("top", ["one", "normed"], ids=["in place", "elsewhere"])
@pytest.mark.parametrize("relu", [True, False], ids=["with ReLU", "without"])
def test_factors_behind_a_norm_without_gradient_learn(top, relu):
    """Of layers that run as one, the first may be frozen."""
    convolution = (CONVOLUTION % ("one", "x", "one")).replace(
        "false }", "false } param { lr_mult: 0 }"
    )
    frozen = (NORM % top).replace("}", " ".join(["param { lr_mult: 0 }"] * 3) + " }")
    layers = [convolution, frozen, *chain(top, relu=relu)[1:], CONVOLUTION % ("two", top, "y")]
    layers.append(layer("loss", "EuclideanLoss", "y x", "loss"))
    text = net(*layers, shape=(2, 32, 7, 6)).replace("force_backward: true", "")
    fast, portable = (Net(text, "TRAIN", device=d, seed=1) for d in ("cpu", "numpy"))
    for each in (fast, portable):
        each.blobs["x"].data = np.random.default_rng(0).normal(size=(2, 32, 7, 6))
        each.forward_backward()

    assert not fast.structure.needs.layers[fast.layer_number("norm")]
    for one, other in zip(fast.params["scale"], portable.params["scale"], strict=True):
        assert np.abs(other.diff).max() > 1
        np.testing.assert_allclose(one.diff, other.diff, rtol=1e-4, atol=1e-4)


IN_PLACE = {
    "two factors": ["Scale", "Scale"],
    "three factors": ["Scale", "Scale", "Scale"],
    "a norm between factors": ["Scale", "BatchNorm", "Scale"],
    "norms": ["BatchNorm", "BatchNorm"],
}


@pytest.mark.parametrize("keep", [None, "outputs"])
@pytest.mark.parametrize("kinds", IN_PLACE.values(), ids=IN_PLACE)
def test_steps_in_place_on_one_blob_keep_their_own_inputs_in_every_pass(kinds, keep):
    fields = {"Scale": "scale_param { bias_term: true filler { value: -1.5 } }", "BatchNorm": ""}
    layers = [layer(f"in place {i}", kind, "y", "y", fields[kind]) for i, kind in enumerate(kinds)]
    convolution = (
        "convolution_param { num_output: 20 kernel_size: 3 pad: 1 bias_term: false "
        'weight_filler { type: "gaussian" std: 0.3 } }'
    )
    text = net(layer("conv", "Convolution", "x", "y", convolution), *layers, shape=(4, 3, 8, 8))
    fast, portable = build(text, keep_blobs=keep), build(text, optimize=False)

    for number in range(9):  # the first passes are recorded, the others replayed
        rng = np.random.default_rng(number)
        x, dy = rng.normal(size=(4, 3, 8, 8)), rng.normal(size=(4, 20, 8, 8))
        for each in (fast, portable):
            each.clear_param_diffs()
            each.blobs["x"].data[...] = x * (1 + number)
            each.forward()
            each.blobs["y"].diff[...] = dy
            each.backward()
        for name, blobs in portable.params.items():
            for index, blob in enumerate(blobs):
                scale = max(1.0, np.abs(blob.diff).max())
                difference = np.abs(fast.params[name][index].diff - blob.diff).max()
                assert difference <= 2e-3 * scale, (number, name, index)


def test_a_pass_of_a_part_changes_which_buffers_steps_in_place_have():
    fields = "scale_param { bias_term: true filler { value: 1.5 } }"
    text = net(
        conv(16, 'kernel_size: 3 pad: 1 weight_filler { type: "xavier" }', name="y"),
        layer("scale", "Scale", "y", "y", fields), layer("norm", "BatchNorm", "y", "y"),
        conv(16, 'kernel_size: 3 pad: 1 weight_filler { type: "xavier" }', "y", "z"),
        shape=(4, 16, 8, 8),
    )  # fmt: skip
    fast, portable = build(text), build(text, optimize=False)

    for number in range(9):
        rng = np.random.default_rng(number)
        x, dz = rng.normal(size=(4, 16, 8, 8)), rng.normal(size=(4, 16, 8, 8))
        for each in (fast, portable):
            each.clear_param_diffs()
            each.blobs["x"].data = x
            if number == 5:
                each.forward(end="scale")
            each.forward()
            each.blobs["z"].diff = dz
            each.backward()
        want = portable.blobs["x"].diff
        np.testing.assert_allclose(fast.blobs["x"].diff, want, atol=1e-4 * np.abs(want).max())
