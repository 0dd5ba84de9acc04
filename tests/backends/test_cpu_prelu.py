"""PReLU on device cpu: by itself, and inside the convolution before it."""

import ctypes
import mmap

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.core.config import settings
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())


def source(*shape):
    sizes = " ".join(f"dim: {size}" for size in shape)
    return f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {sizes} }} }} }}'


def convolution(bottom, maps, kernel=3, pad=1, group=1, name="c"):
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: {maps} kernel_size: {kernel} pad: {pad} group: {group} "
        'weight_filler { type: "gaussian" std: 0.2 } bias_filler { value: 0.1 } } }'
    )


def prelu(bottom, top, more=""):
    return (
        f'layer {{ name: "p" type: "PReLU" bottom: "{bottom}" top: "{top}" '
        f'prelu_param {{ filler {{ type: "gaussian" std: 0.5 }} {more} }} }}'
    )


NORM = """
layer { name: "norm" type: "BatchNorm" bottom: "c" top: "c"
  batch_norm_param { use_global_stats: true } }
layer { name: "scale" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
"""
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "c" bottom: "d" top: "sum" }'
POOL = """
layer { name: "pool" type: "Pooling" bottom: "c" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
"""
CASES = {
    "alone": [source(2, 32, 9, 7), prelu("x", "y")],
    "in place": [source(2, 20, 9, 7), convolution("x", 24), prelu("c", "c"), POOL],
    "rows": [source(3, 33), prelu("x", "y")],
    "volumes": [source(1, 16, 3, 4, 5), prelu("x", "y")],
    "one slope": [source(2, 32, 9, 7), prelu("x", "y", "channel_shared: true")],
    "padded": [source(1, 3, 24, 24), convolution("x", 28, pad=0), prelu("c", "c"), POOL],
    "few to many": [source(1, 1, 96, 96), convolution("x", 56, 5, 2), prelu("c", "c")],
    "pixels": [source(2, 32, 9, 7), convolution("x", 64, 1, 0), prelu("c", "c")],
    "each channel": [source(2, 32, 9, 7), convolution("x", 32, group=32), prelu("c", "c")],
    "small groups": [source(2, 32, 9, 7), convolution("x", 32, group=8), prelu("c", "c")],
    "to few": [source(2, 32, 9, 7), convolution("x", 3), prelu("c", "c")],
    "tiles": [source(2, 64, 28, 28), convolution("x", 64), prelu("c", "c")],
    "norm": [source(2, 32, 9, 7), convolution("x", 48), NORM, prelu("c", "c")],
    "norm of each channel": [
        source(2, 32, 9, 7), convolution("x", 32, group=32), NORM, prelu("c", "c"),
    ],
    "sum": [
        source(2, 32, 9, 7), convolution("x", 32, 1, 0, name="d"), convolution("x", 32, 1, 0), SUM,
        prelu("sum", "sum"),
    ],
}  # fmt: skip
ALONE = {"alone", "rows", "volumes", "one slope"}
INSIDE = {
    "in place",
    "padded",
    "few to many",
    "pixels",
    "each channel",
    "tiles",
    "norm",
    "norm of each channel",
    "sum",
}


def passes(text, device):
    """Return what comes out of two passes, of other input and with other slopes."""
    rng, found = np.random.default_rng(1), []
    with Net(
        parse_text(text, NetParameter), "TEST", device=device, seed=3, keep_blobs="outputs"
    ) as net:
        if net.has_layer("norm"):
            for blob, value in zip(net.params["norm"], (0.2, 3.0, 1.5), strict=True):
                blob.data[...] = value
        [output] = net.outputs
        for value in (1.0, np.nan):
            net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
            net.blobs["x"].data.flat[7] = value
            net.params["p"][0].data[...] -= 0.5
            net.forward()
            found.append(np.array(net.blobs[output].data))
        codes = {layer.name: layer.code for layer in report(net.plan)}
    return found, codes


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_portable_code_computes(name):
    text = "".join(CASES[name])
    want, _ = passes(text, "numpy")

    found, codes = passes(text, "cpu")

    np.testing.assert_allclose(found[0], want[0], rtol=1e-4, atol=1e-4)
    lost, whole = np.isnan(found[1]), np.isnan(want[1])
    assert (lost & whole == whole).all()  # tiles spread NaN
    np.testing.assert_allclose(found[1][~lost], want[1][~lost], rtol=1e-4, atol=1e-4)
    if name in ALONE | INSIDE:  # of the others kernels decide that know no slopes
        assert (codes["p"] == "") == (name in INSIDE)


@pytest.mark.parametrize("value", [1.0, np.nan, np.inf], ids=str)
def test_gradients_are_those_of_portable_code_with_nan_too(value):
    text = "force_backward: true " + source(2, 20, 9, 7) + prelu("x", "x")
    found = {}
    for device in ("numpy", "cpu"):
        rng = np.random.default_rng(1)
        with Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=3) as net:
            net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
            net.blobs["x"].data.flat[7] = value
            net.forward()
            net.blobs["x"].diff[...] = rng.normal(size=net.blobs["x"].shape)
            net.backward()
            blobs = net.blobs["x"], net.params["p"][0]
            found[device] = [np.array(blob.diff) for blob in blobs]

    for ours, want in zip(found["cpu"], found["numpy"], strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-5)


def test_no_slope_beyond_the_last_is_read():
    """The library computes 32 channels of 28; a page that nobody may read lies behind those."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) == 0
    slopes = np.frombuffer(memory, np.float32, 28, page - 28 * 4)
    slopes[...] = 0.25
    text = "".join(CASES["padded"])
    with Net(parse_text(text, NetParameter), "TEST", device="cpu", keep_blobs="outputs") as net:
        net.params["p"][0].set_cpu_data(slopes)

        net.forward()

        assert np.isfinite(net.blobs["pool"].data).all()


@pytest.mark.parametrize("phase", ["TEST", "TRAIN"])
@pytest.mark.parametrize("channels", [17, 24, 40, 100])
def test_one_value_for_each_slope_is_multiplied_once_in_place(channels, phase):
    text = source(1, channels, 2, 2) + POOL.replace('"c"', '"x"') + prelu("pool", "pool")
    found = {}

    for device in ("numpy", "cpu"):
        with settings.override(threads=4):
            net = Net(parse_text(text, NetParameter), phase, device=device, seed=3)
            net.blobs["x"].data[...] = np.random.default_rng(1).normal(size=net.blobs["x"].shape)
            net.forward()
            found[device] = np.array(net.blobs["pool"].data)

    np.testing.assert_allclose(found["cpu"], found["numpy"], rtol=1e-6)
