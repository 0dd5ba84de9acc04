"""NaN and infinity go through nets as in Caffe's code for the CPU, however layers are fused.

The rules of ReLU and MAX pooling stand here as loops over single numbers; the portable code follows
them, and every backend's nets have NaN and infinity where the portable code has them.
"""

import math
from functools import lru_cache

import numpy as np
import pytest

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

NAN, INF = math.nan, math.inf
LOWEST = -float(np.finfo(np.float32).max)
SHAPE = (2, 16, 7, 6)

VALUES = [NAN, INF, -INF, -3.0, 0.0, 2.0, 1e-38, -1e38]


def source(shape=SHAPE):
    sizes = " ".join(f"dim: {size}" for size in shape)
    return f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {sizes} }} }} }}'


def layer(kind, rest="", bottom="x", top="y", name=""):
    bottoms = " ".join(f'bottom: "{one}"' for one in bottom.split())
    return f'layer {{ name: "{name or kind}" type: "{kind}" {bottoms} top: "{top}" {rest} }}'


def filled(kind, rest):
    weight = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { value: 0.1 }'
    return f"{kind} {{ {rest} {weight} }}"


CONV = layer("Convolution", filled("convolution_param", "num_output: 16 kernel_size: 3"))
POINTS = layer("Convolution", filled("convolution_param", "num_output: 32 kernel_size: 1"))
PRODUCT = layer("InnerProduct", filled("inner_product_param", "num_output: 9"))
SUM = layer("Eltwise", bottom="x z")
RELU = layer("ReLU", bottom="y")
LEAKY = layer("ReLU", "relu_param { negative_slope: 0.1 }", bottom="y")
MAX = layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", bottom="y", top="p")
AVE = layer("Pooling", "pooling_param { pool: AVE kernel_size: 2 stride: 2 }", bottom="y", top="p")
NORM = layer("BatchNorm", bottom="y")
STORED = layer("BatchNorm", "batch_norm_param { use_global_stats: true }", bottom="y")
SCALE = layer("Scale", "scale_param { bias_term: true filler { value: -1.5 } }", bottom="y")
LRN = layer("LRN", "lrn_param { local_size: 3 }", bottom="y", top="l")
POWER = layer("Power", "power_param { scale: 2 }")
SECOND = layer("Power", top="z", name="second")

CHAINS = {
    "ReLU": [POWER, RELU],
    "ReLU apart": [layer("ReLU", bottom="x", top="y")],
    "leaky ReLU": [POWER, LEAKY],
    "Convolution, ReLU": [CONV, RELU],
    "Convolution 1x1, ReLU": [POINTS, RELU],
    "Convolution, leaky ReLU": [CONV, LEAKY],
    "Convolution, ReLU, MAX": [CONV, RELU, MAX],
    "Convolution, MAX": [CONV, MAX],
    "Convolution, ReLU, AVE": [CONV, RELU, AVE],
    "Convolution, BatchNorm, Scale, ReLU": [CONV, NORM, SCALE, RELU],
    "Convolution, stored BatchNorm, ReLU": [CONV, STORED, RELU],
    "BatchNorm, ReLU": [POWER, NORM, RELU],
    "BatchNorm, Scale, ReLU": [POWER, NORM, SCALE, RELU],
    "stored BatchNorm, Scale, ReLU": [POWER, STORED, SCALE, RELU],
    "Scale, ReLU": [POWER, SCALE, RELU],
    "InnerProduct, ReLU": [PRODUCT, RELU],
    "Eltwise, ReLU": [SECOND, SUM, RELU],
    "Convolution, Eltwise, ReLU": [
        layer("Convolution", filled("convolution_param", "num_output: 16 kernel_size: 1"), top="z"),
        SUM, RELU,
    ],
    "MAX, ReLU": [POWER, MAX, layer("ReLU", bottom="p", top="p")],
    "ReLU, LRN": [POWER, RELU, LRN],
}  # fmt: skip


@lru_cache(maxsize=1024)
def parsed(text):
    return parse_text(text, NetParameter)


def make(text, phase, device, *, optimize=True):
    net = Net(parsed(text), phase, device=device, optimize=optimize, seed=3)
    for name, blobs in net.params.items():
        if net.layer_by_name(name).type == "BatchNorm":
            for blob, value in zip(blobs, (0.3, 3.0, 1.5), strict=True):
                blob.data[...] = value
    return net


def run(text, phase, device, place, value, *, optimize=True):
    """Return what a net computes where one element of its input or a parameter is ``value``."""
    net = make(text, phase, device, optimize=optimize)
    rng = np.random.default_rng(5)
    net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
    blobs = [net.blobs["x"], *(blob for params in net.params.values() for blob in params)]
    blobs[place].data.reshape(-1)[2 * blobs[place].count // 3] = value
    net.forward()
    [output] = net.outputs
    if phase == "TEST":  # deployed: no gradient is asked for, so layers may be folded together
        return {output: np.array(net.blobs[output].data)}
    net.blobs[output].diff[...] = rng.normal(size=net.blobs[output].shape)
    net.backward()
    gradients = {
        f"gradient {i} of {name}": blob.diff
        for name, params in net.params.items()
        for i, blob in enumerate(params)
        if net.layer_by_name(name).type != "BatchNorm"
    }
    results = {output: net.blobs[output].data, "gradient of x": net.blobs["x"].diff, **gradients}
    return {name: np.array(array) for name, array in results.items()}


@lru_cache(maxsize=1024)
def portable(text, phase, place, value):
    return run(text, phase, "numpy", place, value, optimize=False)


def kinds(array):
    """1 for NaN, 2 for infinity, -2 for minus infinity, 0 for other numbers."""
    return np.isnan(array) + 2 * np.isposinf(array) - 2 * np.isneginf(array)


# -- the rules ---------------------------------------------------------------------------------


def larger(a, b):
    """std::max."""
    return b if a < b else a


def smaller(a, b):
    """std::min."""
    return b if b < a else a


def rectified(x, slope):
    return larger(x, 0.0) + slope * smaller(x, 0.0)


def passed_on(x, dy, slope):
    return dy * ((x > 0) + slope * (x <= 0))


def largest(window):
    best = LOWEST
    for value in window:
        best = value if value > best else best
    return best


@pytest.mark.parametrize("optimize", [True, False], ids=["steps", "portable"])
@pytest.mark.parametrize("slope", [0.0, 0.5])
@pytest.mark.parametrize("top", ["x", "y"], ids=["in_place", "apart"])
def test_relu_follows_the_rule_for_every_number(top, slope, optimize, backend):
    param = f"relu_param {{ negative_slope: {slope} }}"
    text = f"force_backward: true {source((len(VALUES), 2))} {layer('ReLU', param, 'x', top)}"
    net = Net(parse_text(text, NetParameter), "TRAIN", device=backend, optimize=optimize)
    values, slopes = np.array(VALUES, np.float32), np.array([NAN, 3.0], np.float32)
    net.blobs["x"].data[...] = values[:, np.newaxis]

    net.forward()
    got = np.array(net.blobs[top].data)
    net.blobs[top].diff[...] = slopes
    net.backward()

    assert kinds(got).tolist() == [[kinds(rectified(x, slope))] * 2 for x in VALUES]
    # cpu's kernels, and cupy's portable code, take float32 below its normal numbers for 0
    flushes = optimize if backend == "cpu" else backend.startswith("cuda") and not optimize
    flushed = np.finfo(np.float32).tiny if flushes else 0
    wanted = np.array([rectified(float(x), slope) for x in values])
    np.testing.assert_allclose(got[:, 0], wanted, rtol=1e-6, atol=flushed)
    want = [[kinds(passed_on(x, dy, slope)) for dy in slopes] for x in VALUES]
    assert kinds(net.blobs["x"].diff).tolist() == want


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_max_pooling_follows_the_rule_for_every_window(phase, backend):
    windows = [
        [NAN, NAN, NAN, NAN], [-INF, -INF, -INF, -INF], [NAN, 1.0, 2.0, -1.0],
        [-2.0, -1.0, NAN, NAN], [NAN, -INF, -7.0, NAN], [NAN, INF, NAN, 0.0],
    ]  # fmt: skip
    pool = layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", top="p")
    text = f"force_backward: true {source((1, 16, 2, 12))} {pool}"
    net = Net(parse_text(text, NetParameter), phase, device=backend)
    rows = np.array(windows, np.float32).reshape(6, 2, 2).transpose(1, 0, 2)
    net.blobs["x"].data[...] = rows.reshape(2, 12)

    net.forward()

    want = [largest(window) for window in windows]
    np.testing.assert_array_equal(net.blobs["p"].data, np.broadcast_to(want, (1, 16, 1, 6)))


# -- chains ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("chain", CHAINS)
def test_one_number_that_is_none_shows_where_it_does_in_portable_code(
    chain, phase, value, backend_with_steps
):
    train = str(phase == "TRAIN").lower()
    text = "\n".join([f"force_backward: {train}", source(), *CHAINS[chain]])
    places = 1 + sum(map(len, make(text, phase, "numpy").params.values()))

    borders = phase == "TRAIN" and multiplies_borders(backend_with_steps, text, phase)

    for place in range(places):
        got = run(text, phase, backend_with_steps, place, value)

        # what becomes of infinity, itself or NaN, depends on what is summed or multiplied first
        look = np.isnan if math.isnan(value) else np.isfinite
        for name, want in portable(text, phase, place, value).items():
            found, wanted = look(got[name]), look(want)
            if name == "gradient of x" and borders:
                numbers = np.isfinite(want)
                found, wanted = found[~numbers], wanted[~numbers]
            np.testing.assert_array_equal(
                found, wanted, err_msg=f"{name}, {value} at place {place}"
            )


def multiplies_borders(device, text, phase):
    """Return whether zeros around the maps meet the weight too, as in cuDNN's gradients."""
    net = make(text, phase, device)
    net.forward()
    codes = [step.backward_code for step in net.plan.steps() if step is not None]
    return any("cuDNN" in code or "igemm" in code for code in codes)
