"""Inner products of few rows without gradients on device cpu."""

import numpy as np
import pytest
from lowered import WIDTHS, tuned

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.engine import engine
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'
LEAKY = RELU.replace("top", "relu_param { negative_slope: 0.1 } top")
RELU6, SIGMOID, TANH = (RELU.replace("ReLU", kind) for kind in ("ReLU6", "Sigmoid", "TanH"))
APPENDED = [RELU, LEAKY, RELU6]
"""What implicit GEMM appends, whose rows are more."""


def pair(rows, after="", bias="true", outputs=37):
    """A net and the same one in portable code."""
    text = f"""input: "x" input_shape {{ dim: {rows} dim: 70 }}
    layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{
      num_output: {outputs} bias_term: {bias} weight_filler {{ type: "gaussian" std: 0.3 }}
      bias_filler {{ type: "uniform" min: -1 max: 1 }} }} }} {after}"""
    message = parse_text(text, NetParameter)
    return [
        Net(message, "TEST", device="cpu", seed=1, optimize=lowered) for lowered in (True, False)
    ]


def results(nets, x):
    for net in nets:
        net.blobs["x"].mutable_cpu_data()[...] = x
        net.forward()
    return [net.blobs["y"].cpu_data() for net in nets]


def rows_of(count):
    return np.random.default_rng(0).normal(size=(count, 70)).astype(np.float32)


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("after", ["", *APPENDED, SIGMOID, TANH])
@pytest.mark.parametrize("rows", [1, 4, 5, 8, 9])
def test_few_rows_run_in_our_kernel(rows, after, bias):
    nets = pair(rows, after, bias)

    got, want = results(nets, rows_of(rows))

    [entry] = [entry for entry in nets[0].plan.entries if entry.layer.name == "ip"]
    ran = entry.group and entry.group.step
    step = ran or entry.executed_step
    most = {16: 8, 8: 4}[engine().tuning.width]
    assert ("few rows" in step.code) == (rows <= most)
    assert (ran is not None) == (after in APPENDED or (bool(after) and rows <= most))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_few_rows_that_are_switched_off_run_by_implicit_gemm():
    with tuned(without=frozenset({"few_rows"})):
        nets = pair(4)
        got, want = results(nets, rows_of(4))

    [entry] = [entry for entry in nets[0].plan.entries if entry.layer.name == "ip"]
    assert entry.executed_step.code.startswith("igemm llvm")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_new_parameters_are_followed():
    nets = pair(3, RELU)
    results(nets, rows_of(3))

    for net in nets:
        for blob in net.learnable_params:
            blob.mutable_cpu_data()[...] *= -2
    got, want = results(nets, rows_of(3))

    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("outputs", [337, 1000])
def test_the_panels_of_other_numbers_of_rows_are_others(outputs, width):
    with tuned(width=width):
        nets = pair(2, outputs=outputs)
        for rows in (2, 3, 1, 4, 5, 8, 2, 30, 1):
            for net in nets:
                net.blobs["x"].reshape(rows, 70)
                net.reshape()
            got, want = results(nets, rows_of(rows))

            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("after", ["", *APPENDED, SIGMOID, TANH])
def test_nan_and_infinity_stay_in_their_row(after):
    x = rows_of(4)
    x[1, 2], x[2, 69] = np.nan, np.inf

    got, want = results(pair(4, after), x)

    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
