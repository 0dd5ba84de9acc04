"""InnerProducts whose bias cuBLASLt adds, on the stand-in for cupy and its libraries."""

from unittest.mock import patch

import numpy as np
import pytest
from cuda_host import need_compiler
from gpu import blas
from gpu.package import in_place
from replays import played_from_now_on

from demitasse import Net
from demitasse.backends.cupy.library import engine
from demitasse.backends.cupy.library.cublas import Product
from demitasse.backends.cupy.library.cublas_lt import BiasProduct
from demitasse.backends.step import Declined
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode
from demitasse.io.proto import NetParameter, parse_text

NET = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 6 dim: 10 } } }
layer { name: "one" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 7 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "two" type: "InnerProduct" bottom: "y" top: "z" inner_product_param {
  num_output: 5 transpose: true weight_filler { type: "xavier" }
  bias_filler { type: "uniform" } } }
"""


@pytest.fixture
def gpu():
    need_compiler()
    with in_place():
        device = Device("cuda:0")
        device.backend.engine.__dict__.pop("_cublas_lt", None)
        yield device
        device.backend.engine.__dict__.pop("_cublas_lt", None)


def net_on(gpu, *, fused, storage="float", phase="TRAIN"):
    with settings.override(cublas_bias=fused):
        net = Net(parse_text(NET, NetParameter), phase, device=gpu, seed=1, storage=storage)
        fill(net, np.random.default_rng(2))
        net.forward()
    return net


def fill(net, rng):
    net.blobs["x"].mutable_cpu_data()[...] = rng.normal(size=net.blobs["x"].shape)


def step(net):
    net.clear_param_diffs()
    net.forward()
    net.blobs["z"].mutable_cpu_diff()[...] = 1
    net.backward()
    blobs = (*net.blobs.values(), *net.learnable_params)
    return [np.array(one) for blob in blobs for one in (blob.cpu_data(), blob.cpu_diff())]


def codes(net):
    return [one.step.code for one in net.plan.entries if one.layer.type == "InnerProduct"]


@pytest.mark.parametrize(
    ("storage", "allowed"), [("float", 1e-6), ("half", 2e-3), ("bfloat16", 2e-2)]
)
def test_results_are_those_of_a_kernel_for_the_bias(gpu, storage, allowed):
    nets = [net_on(gpu, fused=fused, storage=storage) for fused in (False, True)]
    remark = "" if storage == "float" else f" ({storage})"

    for want, got in zip(*map(step, nets), strict=True):
        np.testing.assert_allclose(got, want, atol=allowed * max(1, np.abs(want).max()), rtol=0)
    assert codes(nets[0]) == [f"cuBLAS{remark}"] * 2
    assert codes(nets[1]) == [f"cuBLASLt{remark}"] * 2


def test_it_is_off_by_default(gpu):
    net = net_on(gpu, fused=settings.get("cublas_bias"))

    assert codes(net) == ["cuBLAS"] * 2


def test_nan_is_kept_by_the_relu_after_it(gpu):
    net = net_on(gpu, fused=True, phase="TEST")
    net.blobs["x"].mutable_cpu_data()[0] = np.nan
    net.forward()

    assert np.isnan(net.blobs["y"].cpu_data()[0]).all()


def test_the_setting_tf32_rounds_it(gpu):
    with settings.override(tf32="on"):
        net = net_on(gpu, fused=True)
        blas.calls.clear()
        net.forward()
        gpu.backend.synchronize()
        assert {mode for _, _, mode, *_ in blas.calls} == {blas.TF32}
    net = net_on(gpu, fused=True)
    blas.calls.clear()
    with settings.override(tf32="on"):  # not as it was prepared
        net.forward()
        gpu.backend.synchronize()
    assert len(blas.calls) == 2


def test_recorded_passes_are_those_queued_to_the_bit(gpu, monkeypatch):
    found = []
    for graphs in ("off", "auto"):
        played = played_from_now_on(monkeypatch)
        with settings.override(cuda_graphs=graphs):
            net, rng = net_on(gpu, fused=True, storage="half"), np.random.default_rng(3)
            for _ in range(5):
                fill(net, rng)
                last = step(net)
        assert bool(played) is (graphs == "auto")
        found.append(last)

    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_the_library_a_kernel_adds_the_bias_and_the_report_says_why(gpu):
    def missing(name="cublas"):
        raise DeviceError("cuBLASLt cannot be loaded", code=ErrorCode.UNAVAILABLE)

    with patch.object(engine, "load", missing):
        net = net_on(gpu, fused=True, phase="TEST")

    assert codes(net) == ["cuBLAS"] * 2
    assert "cuBLASLt cannot be loaded" in net.plan.entries[1].why


@pytest.mark.parametrize(
    ("product", "why"),
    [
        (Product("float64", 3, 4, 5), "float64"),
        (Product("float32", 0, 4, 5), "no elements"),
        (Product("float32", 3, 4, 0), "no elements"),
    ],
)
def test_other_products_are_declined(gpu, product, why):
    with gpu.backend.enter(), pytest.raises(Declined, match=why):
        gpu.backend.engine.prepare_bias_product(product)


def test_arrays_that_begin_elsewhere_are_not_taken(gpu):
    with gpu.backend.enter():
        own, product = gpu.backend.engine, Product("float32", 3, 4, 5)
        prepared = own.prepare_bias_product(product)
        a, b, bias, out = (own.empty(64, "float32") for _ in range(4))

        assert isinstance(prepared, BiasProduct)
        assert not prepared.run(a[1:], b, bias, out)
        assert prepared.run(a, b, bias, out)
        gpu.backend.synchronize()
