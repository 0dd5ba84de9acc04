"""Steps of convolutions and pooling beside portable code on numpy: numbers, gradients, refusals."""

import jax
import numpy as np
import pytest

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing.conformance.runs import run_on_both

RNG = np.random.default_rng(3)

FILLERS = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'
CONVOLUTIONS = [
    ((3, 4, 9, 8), "num_output: 6 kernel_size: 3"),
    ((3, 4, 9, 8), "num_output: 6 kernel_size: 3 group: 2 pad: 1 stride: 2"),
    ((2, 4, 9, 8), "num_output: 4 kernel_size: 3 group: 4 pad: 2 stride: 2"),
    ((2, 3, 9, 8), "num_output: 4 kernel_h: 1 kernel_w: 3 dilation: 2 bias_term: false"),
    ((2, 3, 9, 8), "num_output: 4 kernel_size: 1 stride: 3"),
    ((2, 3, 9, 8), "num_output: 4 kernel_size: 3 pad_t: 2 pad_l: 0 pad_b: 0 pad_r: 1 stride: 2"),
    ((2, 3, 2, 2), "num_output: 4 kernel_size: 3 stride: 3"),  # sticks out by less than a stride
    ((2, 3, 11), "num_output: 4 kernel_size: 3 stride: 2 pad: 1"),
    ((2, 2, 5, 4, 6), "num_output: 3 kernel_size: 2 stride: 2 pad: 1"),
    ((2, 3, 5, 4), "num_output: 3 kernel_size: 2 axis: 2"),
    ((0, 3, 5, 4), "num_output: 3 kernel_size: 2"),
]
POOLS = [
    ((2, 3, 9, 8), "kernel_size: 3 stride: 2"),
    ((2, 3, 9, 8), "kernel_size: 3 stride: 2 pad: 1"),
    ((2, 3, 9, 8), "kernel_size: 3 pad: 2"),
    ((2, 3, 9, 8), "kernel_h: 2 kernel_w: 4 stride_h: 3 stride_w: 1"),
    ((2, 3, 9, 8), "kernel_size: 2 stride: 5"),
    ((2, 3, 9, 8), "kernel_size: 5 stride: 4 round_mode: FLOOR"),
    ((2, 3, 9, 8), "global_pooling: true"),
    ((2, 3, 4, 3), "kernel_size: 4 pad: 3 stride: 2"),
    ((2, 3, 11), "kernel_size: 3 stride: 2"),
    ((2, 2, 5, 4, 6), "kernel_size: 2 stride: 2"),
    ((0, 3, 5, 4), "kernel_size: 2"),
]


def net_of(kind: str, shape: tuple[int, ...], fields: str, **options: object) -> str:
    field = "pooling_param" if kind == "Pooling" else "convolution_param"
    dims = " ".join(f"dim: {size}" for size in shape)
    return f"""
    force_backward: true
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}
    layer {{ name: "y" type: "{kind}" bottom: "x" top: "y" {field} {{ {fields} }} }}
    """


def check(text: str, x: np.ndarray, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        net = Net(text, "TRAIN", device="jax:cpu", dtype=dtype)
        net.forward()
        assert net.plan.entries[1].step is not None, net.plan.entries[1].why
        run_on_both(parse_text(text, NetParameter), net.device, dtype, {"x": x})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize(("shape", "fields"), CONVOLUTIONS)
def test_a_convolution_computes_what_portable_code_computes(kind, shape, fields, dtype):
    check(net_of(kind, shape, f"{fields} {FILLERS}"), RNG.standard_normal(shape), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["MAX", "AVE", "AVE_EXC_PAD"])
@pytest.mark.parametrize(("shape", "fields"), POOLS)
def test_pooling_computes_what_portable_code_computes(method, shape, fields, dtype):
    x = RNG.integers(-2, 3, shape).astype(dtype)  # with ties
    check(net_of("Pooling", shape, f"pool: {method} {fields}"), x, dtype)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("height", [1, 3])
def test_a_pyramid_computes_what_portable_code_computes(method, height):
    text = f"""
    force_backward: true
    layer {{ name: "x" type: "Input" top: "x" input_param {{
      shape {{ dim: 2 dim: 3 dim: 9 dim: 7 }} }} }}
    layer {{ name: "y" type: "SPP" bottom: "x" top: "y" spp_param {{
      pool: {method} pyramid_height: {height} }} }}
    """
    check(text, RNG.standard_normal((2, 3, 9, 7)), "float32")


def test_the_largest_of_odd_numbers_is_caffes():
    shape = (1, 2, 6, 6)
    x = RNG.standard_normal(shape)
    x[0, 0, :3, :3], x[0, 0, 1, 1], x[0, 1] = np.nan, -np.inf, -np.inf
    text = net_of("Pooling", shape, "pool: MAX kernel_size: 3 stride: 2 pad: 1")

    found = []
    for device in ("numpy", "jax:cpu"):
        net = Net(text.replace('top: "y"', 'top: "y" top: "mask"'), "TRAIN", device=device)
        net.blobs["x"].data[...] = x
        net.forward()
        net.blobs["y"].diff[...] = 1
        net.backward()
        found.append([net.blobs["y"].data, net.blobs["mask"].data, net.blobs["x"].diff])

    for got, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert (found[1][1] == -1).any()


def test_what_has_no_step_says_why():
    text = net_of("Convolution", (2, 3, 5, 5), f"num_output: 2 kernel_size: 1 {FILLERS}")
    pool = net_of("Pooling", (2, 3, 5, 5), "pool: STOCHASTIC kernel_size: 2")

    for prototxt, word in ((text, "1x1"), (pool, "STOCHASTIC")):
        net = Net(prototxt, "TRAIN", device="jax:cpu")
        net.forward()
        assert net.plan.entries[1].step is None
        assert word in net.plan.entries[1].why


def test_a_function_runs_the_steps_of_its_net():
    text = net_of("Convolution", (2, 3, 9, 9), f"num_output: 4 kernel_size: 3 {FILLERS}")
    function = Net(text, "TRAIN", device="jax:cpu").as_function()
    x = np.zeros((2, 3, 9, 9), np.float32)

    program = jax.jit(function).lower(function.params, x).as_text()
    gradient = jax.jit(jax.grad(lambda x: function(function.params, x)["y"].sum())).lower(x)

    assert program.count("stablehlo.convolution") == 1
    assert gradient.as_text().count("stablehlo.convolution") == 1
