"""Sums that several blocks share: how rows are cut, and what comes of it, on the host and a GPU."""

import numpy as np
import pytest
from cuda_host import HostEngine, cuda_at, host_cuda
from hypothesis import given
from hypothesis import strategies as st

from demitasse import Net
from demitasse.backends.cupy import sums as parts
from demitasse.backends.cupy.library.engine import Grid, options
from demitasse.backends.cupy.sums import ChannelSums, SplitReduction
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory.sides import DeviceSide
from demitasse.testing import compare

RNG = np.random.default_rng(0)


class TestParts:
    @given(rows=st.integers(0, 5000), length=st.integers(0, 10**9))
    def test_every_element_is_in_one_part_and_no_part_is_empty(self, rows, length):
        cut = SplitReduction.of(rows, length)

        assert (cut.count - 1) * cut.length < max(1, length) <= cut.count * cut.length
        assert cut.length % parts.MULTIPLE == 0

    @pytest.mark.parametrize(
        ("rows", "length", "count"),
        [(64, 32 * 56 * 56, 24), (2048, 32 * 7 * 7, 1), (1, 100, 1), (1, 10**9, 2048)],
    )
    def test_few_long_rows_are_cut_and_many_short_ones_are_not(self, rows, length, count):
        assert SplitReduction.of(rows, length).count == count


@pytest.fixture
def short(monkeypatch):
    """Cuts rows of more than a few elements."""
    monkeypatch.setattr(parts, "LEAST", 4)


@pytest.mark.parametrize("sizes", [(3, 2, 8), (3, 2, 5), (9, 4, 1), (0, 2, 4), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(2, 4)], ids=str)
@pytest.mark.usefixtures("short")
def test_sums_of_channels(sizes, dtype, grid):
    x, dy = RNG.normal(size=(2, *sizes)).astype(dtype)
    flat, along = np.ones((2, sizes[1]), dtype)

    ChannelSums(HostEngine(grid), dtype, sizes, flat=True, along=True)(
        dy, (flat, True), x, (along, True)
    )  # fmt: skip

    rtol = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(flat, 1 + dy.sum(axis=(0, 2)), rtol, atol=rtol)
    np.testing.assert_allclose(along, 1 + (dy * x).sum(axis=(0, 2)), rtol, atol=rtol)


def test_a_short_row_takes_one_launch_and_a_long_one_two(monkeypatch):
    launched = []
    for least in (4096, 4):
        monkeypatch.setattr(parts, "LEAST", least)
        engine = HostEngine()

        ChannelSums(engine, "float32", (3, 2, 8))(
            np.ones((3, 2, 8), "f"), (np.zeros(2, "f"), True)
        )  # fmt: skip

        launched.append(engine.launched)
    assert launched == [["channel_sums"], ["channel_sums", "sum_parts"]]


@pytest.mark.parametrize("sizes", [(4, 3, 64), (4, 3, 49)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_where_an_array_begins_in_memory_changes_no_bit(sizes, dtype):
    found = []
    for start in (0, 1):
        dy = np.empty(np.prod(sizes) + 4, dtype)
        offset = -dy.ctypes.data // dy.itemsize % (16 // dy.itemsize) + start
        dy = dy[offset : offset + np.prod(sizes)]
        dy[...] = np.random.default_rng(1).normal(size=dy.size)
        flat = np.zeros(sizes[1], dtype)
        ChannelSums(HostEngine(Grid(1, 4)), dtype, sizes)(dy, (flat, True))
        found.append(flat)

    np.testing.assert_array_equal(*found)


LAYERS = {
    "BatchNorm": 'type: "BatchNorm" batch_norm_param { moving_average_fraction: 0.7 eps: 0.01 }',
    "Scale": 'type: "Scale" scale_param { bias_term: true }',
    "Convolution": 'type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 }',
    "InnerProduct": 'type: "InnerProduct" inner_product_param { num_output: 3 axis: -1 }',
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("shape", [(3, 2, 4, 4), (5, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("place", ["host", (2, 4), "cuda:0"], ids=str)
@pytest.mark.usefixtures("short")
def test_layers_whose_rows_are_cut(kind, shape, place):
    dims = " ".join(f"dim: {n}" for n in shape)
    text = f"""
    force_backward: true
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}
    layer {{ name: "l" bottom: "x" top: "y" {LAYERS[kind]} }}
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", dtype="float64", device="readonly", seed=1)
    net.blobs["x"].data[...] = 3 + RNG.normal(size=shape)
    net.blobs["y"].diff[...] = RNG.normal(size=net.blobs["y"].shape)

    compare(net, ["readonly", cuda_at(place)], backward=True).raise_if(1e-10)


TWICE = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 2 dim: 3 dim: 3 } } }
layer { name: "one" bottom: "x" top: "one" KIND param { name: "w" } param { name: "b" } }
layer { name: "two" bottom: "x" top: "two" KIND param { name: "w" } param { name: "b" } }
"""


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "BatchNorm"])
@pytest.mark.parametrize("place", ["host", "cuda:0"], ids=str)
@pytest.mark.parametrize("cut", [True, False])
def test_the_first_gradient_is_written_and_further_ones_are_added(kind, place, cut, monkeypatch):
    if cut:
        monkeypatch.setattr(parts, "LEAST", 4)
    cleared, fill = [], DeviceSide.fill
    monkeypatch.setattr(DeviceSide, "fill", lambda *given: (cleared.append(given), fill(*given)))
    net = Net(
        parse_text(TWICE.replace("KIND", LAYERS[kind]), NetParameter),
        "TRAIN", dtype="float64", device="readonly", seed=1,
    )  # fmt: skip
    found = []

    for device in ("readonly", cuda_at(place)):
        one = net.clone(device)
        one.blobs["x"].mutable_cpu_data()[...] = np.linspace(-1, 1, 72).reshape(4, 2, 3, 3)
        grads = []
        for number in range(4):
            if number != 2:
                one.clear_param_diffs()
            with settings.override(cuda_graphs="off"):
                one.forward()
            for top in ("one", "two"):
                one.blobs[top].mutable_cpu_diff()[...] = 1 + number
            one.backward()
            grads += [blob.cpu_diff().copy() for blob in one.learnable_params]
        found.append(grads)

    assert not cleared
    for portable, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, portable, rtol=1e-10)


@pytest.mark.usefixtures("short")
def test_statistics_of_values_far_from_zero():
    shape = (4, 2, 8, 8)
    text = """
    layer { name: "x" type: "Input" top: "x"
      input_param { shape { dim: 4 dim: 2 dim: 8 dim: 8 } } }
    layer { name: "l" bottom: "x" top: "y" type: "BatchNorm" }
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", device=host_cuda(1, 4))
    x = (1000 + RNG.normal(size=shape)).astype("float32")
    net.blobs["x"].data[...] = x
    net.forward()

    variance = net.params["l"][1].data / (4 * 64) * (4 * 64 - 1)

    np.testing.assert_allclose(variance, x.astype("float64").var(axis=(0, 2, 3)), rtol=1e-4)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(4, 3, 64, 2), (5, 2, 12, 1), (3, 1, 4096, 3), (2, 2, 7, 1)])
@pytest.mark.parametrize("threads", [32, 256])
def test_parts_in_registers_have_the_statistics_of_parts_that_are_read_twice(dtype, sizes, threads):
    samples, channels, plane, count = sizes
    backend, many = Device("cuda:0").backend, samples * plane
    length = -(-many // count // 4) * 4 + (4 if count > 1 else 0)
    real = np.dtype(dtype).type
    numbers = (
        *map(np.int32, (channels, samples, plane, count, length)),
        *map(real, (1e-5, 0.5, 1.5)),
    )
    x = RNG.normal(size=samples * channels * plane).astype(dtype)
    found = []

    for kept in ("-DKEPT=0", "-DKEPT=8", "-DKEPT=64"):
        with backend.enter():
            arrays = [backend.zeros(channels * count, dtype) for _ in range(7)]
            flags = (*options(dtype, wide=False), kept)
            grid = Grid(channels * count, threads)
            launch = backend.engine.function("batch_norm", "part_statistics", flags, grid, numbers)
            launch(backend.asarray(x), *arrays)
            found.append([backend.to_host(array) for array in arrays])

    assert np.isfinite(found[0][0]).all()
    assert (found[0][1] > 0).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("place", ["host", (2, 4), "cuda:0"], ids=str)
@pytest.mark.parametrize("fields", ["ignore_label: 1 normalization: VALID", ""])
@pytest.mark.usefixtures("short")
def test_a_loss_of_many_labels(place, fields):
    text = f"""
    force_backward: true
    layer {{ name: "x" type: "Input" top: "x"
      input_param {{ shape {{ dim: 3 dim: 4 dim: 5 }} }} }}
    layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ dim: 3 dim: 5 }} }} }}
    layer {{ name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "t" top: "loss"
      loss_param {{ {fields} }} }}
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", dtype="float64", device="readonly")
    net.blobs["x"].data[...] = RNG.normal(size=(3, 4, 5))
    net.blobs["t"].data[...] = RNG.integers(0, 4, (3, 5))

    compare(net, ["readonly", cuda_at(place)], backward=True).raise_if(1e-10)


@pytest.mark.parametrize("place", ["host", (2, 4), "cuda:0"], ids=str)
@pytest.mark.parametrize(
    "layer",
    [
        '"EuclideanLoss"',
        '"SigmoidCrossEntropyLoss"',
        '"SigmoidCrossEntropyLoss" loss_param { normalization: VALID ignore_label: 1 }',
    ],
)
@pytest.mark.usefixtures("short")
def test_a_loss_of_many_elements(place, layer):
    text = f"""
    force_backward: true
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 3 dim: 7 }} }} }}
    layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ dim: 3 dim: 7 }} }} }}
    layer {{ name: "l" type: {layer} bottom: "x" bottom: "t" top: "loss" }}
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", dtype="float64", device="readonly")
    net.blobs["x"].data[...] = 30 * RNG.normal(size=(3, 7))
    net.blobs["t"].data[...] = RNG.integers(0, 2, (3, 7))

    compare(net, ["readonly", cuda_at(place)], backward=True).raise_if(1e-10)
