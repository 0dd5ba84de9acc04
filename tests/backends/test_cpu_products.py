"""InnerProduct on device cpu at many sizes, against the portable code."""

import numpy as np
import pytest
from lowered import NEEDS_KERNELS, WIDTHS, build, expect_same, layer, net, run, tuned

from demitasse.core.config import settings

pytestmark = NEEDS_KERNELS

WIDTH = pytest.mark.parametrize("width", WIDTHS)
ROWS = (1, 2, 3, 7, 8, 9, 31, 64, 113, 300)
SIZES = ((1, 1), (3, 5), (16, 16), (33, 7), (511, 31), (513, 33), (1025, 10), (70, 129))
"""Inputs and outputs of a row."""


def product(outputs, fields="", more=""):
    param = f"{more} inner_product_param {{ num_output: {outputs} {fields} }}"
    return layer("c", "InnerProduct", "x", "y", param)


def frozen(weight, bias):
    return f"param {{ lr_mult: {weight} }} param {{ lr_mult: {bias} }}"


def code_of(planned):
    step = planned.plan.entries[1].step
    return step.code, step.backward_code


@WIDTH
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("length", "outputs"), SIZES)
@pytest.mark.parametrize("transpose", ["false", "true"])
def test_both_passes_are_the_portable_ones(transpose, length, outputs, rows, width):
    text = net(product(outputs, f"transpose: {transpose}"), shape=(rows, length))

    with tuned(width=width):
        planned = expect_same(text, ["c"])

    assert all(code.startswith("igemm llvm") for code in code_of(planned))


@WIDTH
@pytest.mark.parametrize("transpose", ["false", "true"])
@pytest.mark.parametrize("more", ["", frozen(0, 1), frozen(1, 0), frozen(0, 0)])
@pytest.mark.parametrize("bias", ["true", "false"])
def test_gradients_that_are_wanted_alone(bias, more, transpose, width):
    if bias == "false":
        more = more[: len(more) // 2]
    fields = f"transpose: {transpose} bias_term: {bias}"

    with tuned(width=width):
        expect_same(net(product(21, fields, more), shape=(13, 3, 7, 5)), ["c"])


@WIDTH
@pytest.mark.parametrize("transpose", ["false", "true"])
@pytest.mark.parametrize("rows", [1, 5, 8, 9, 64, 300])
def test_without_gradients_weights_may_lie_in_panels(rows, transpose, width):
    text = net(product(37, f"transpose: {transpose}"), shape=(rows, 131))
    text = text.replace("force_backward: true", "")
    with tuned(width=width):
        planned, portable = build(text, "TEST"), build(text, "TEST", optimize=False)

        for _ in range(3):  # changed weights are packed again
            for one in (planned, portable):
                for blob in one.params["c"]:
                    blob.data[...] *= -1.5
                one.forward()

            want = portable.blobs["y"].data
            assert np.abs(planned.blobs["y"].data - want).max() <= 2e-5 * np.abs(want).max()


@WIDTH
@pytest.mark.parametrize("transpose", ["false", "true"])
@pytest.mark.parametrize(("rows", "length", "outputs"), [(64, 3000, 10), (7, 700, 300), (1, 9, 1)])
def test_threads_change_no_bits(rows, length, outputs, transpose, width):
    text = net(product(outputs, f"transpose: {transpose}"), shape=(rows, length))
    results = []

    for threads in (1, 2, 3, 7):
        with settings.override(threads=threads), tuned(width=width):
            results.append(run(build(text)))

    for other in results[1:]:
        for name, values in results[0].items():
            np.testing.assert_array_equal(other[name], values, err_msg=name)


@pytest.mark.parametrize("transpose", ["false", "true"])
def test_widths_change_no_bits(transpose):
    text = net(product(33, f"transpose: {transpose}"), shape=(19, 1100))
    results = []

    for width in WIDTHS:
        with tuned(width=width):
            results.append(run(build(text)))

    for name, values in results[0].items():
        np.testing.assert_array_equal(results[1][name], values, err_msg=name)


@WIDTH
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rows", [3, 40])
def test_a_number_that_is_none_stays_in_its_row(rows, value, width):
    text = net(product(21), shape=(rows, 70)).replace("force_backward: true", "")
    with tuned(width=width):
        planned, portable = build(text, "TEST"), build(text, "TEST", optimize=False)
        for one in (planned, portable):
            one.blobs["x"].data[1, 69] = value
            one.forward()

    got, want = planned.blobs["y"].data, portable.blobs["y"].data
    assert not np.isfinite(got[1]).any()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
