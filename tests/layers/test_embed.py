"""Embed."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import check_gradients, make_layer

WORDS = np.array([[3, 0, 4], [3, 3, 1]])


def layer(fields="", words=WORDS, **options):
    text = (
        'type: "Embed" embed_param { num_output: 2 input_dim: 5 '
        f'weight_filler {{ type: "gaussian" }} {fields} }}'
    )
    return make_layer(text, [words], **options)


def test_looks_each_index_up(backend):
    one = layer("bias_filler { value: 0.5 }", device=backend)
    table = np.arange(10.0).reshape(5, 2)
    one.params[0].data = table
    assert [blob.shape for blob in one.params] == [(5, 2), (2,)]

    [y] = one.forward()

    np.testing.assert_array_equal(y, table[WORDS] + 0.5)


def test_cuts_fractions_off(backend):
    one = layer("bias_term: false", np.array([1.9, 0.0, -0.4]), device=backend)

    [y] = one.forward()

    np.testing.assert_array_equal(y, one.params[0].data[[1, 0, 0]])


@pytest.mark.parametrize("fields", ["bias_term: false", "", "bias_filler { value: 1 }"])
def test_gradients(fields, backend):
    check_gradients(layer(fields, device=backend))


@pytest.mark.parametrize("word", [5, -1, np.nan])
def test_refuses_an_index_that_is_not_in_the_table(word):
    one = layer()

    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="bottom0", mentions=f"{word:g}"):
        one.forward(np.array([0, word, 2]))


@pytest.mark.parametrize("word", [5, -6])
def test_a_wrong_index_that_is_on_the_device_alone_is_refused_too(word):
    one = layer(device="strict:device1")
    words = np.array([0, word, 2], np.float32)
    one.forward(np.zeros(3))
    one.bottom[0].write(one.layer.device.backend.asarray(words))

    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="bottom0", mentions=f"{word:g}"):
        one.layer.forward(one.bottom, one.top)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("word", [7, -1])
def test_a_gpu_counts_a_wrong_index_that_is_there_alone_modulo_the_rows(word):
    one = layer("bias_term: false", device="cuda:0")
    table = np.arange(10.0).reshape(5, 2)
    one.params[0].data = table
    one.forward(np.zeros(3))
    one.bottom[0].write(one.layer.device.backend.asarray(np.array([0, word, 2], np.float32)))

    one.layer.forward(one.bottom, one.top)

    np.testing.assert_array_equal(one.top[0].cpu_data(), table[[0, word % 5, 2]])


@pytest.mark.usefixtures("stand_in")
def test_a_gpu_refuses_a_wrong_index_that_the_host_has():
    one = layer(device="cuda:0")

    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="bottom0", mentions="7"):
        one.forward(np.array([0, 7, 2]))


def test_has_no_gradient_for_indices():
    one = layer()
    one.forward()

    with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom0"):
        one.backward(propagate_down=[True])


@pytest.mark.parametrize("missing", ["num_output", "input_dim"])
def test_refuses_a_missing_size(missing):
    fields = " ".join(f"{name}: 3" for name in ("num_output", "input_dim") if name != missing)

    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field=f"embed_param.{missing}"):
        make_layer(f'type: "Embed" embed_param {{ {fields} }}', [WORDS])


def test_an_infinite_gradient_of_one_word_leaves_the_others_alone(backend):
    one = layer("bias_term: false", device=backend)
    dy = np.ones((2, 3, 2))
    dy[0, 1] = np.inf  # word 0
    one.forward()

    one.backward(dy, propagate_down=[False])

    assert np.isinf(one.params[0].diff[0]).all()
    np.testing.assert_array_equal(one.params[0].diff[1:, 0], [1, 0, 3, 1])
