"""Embed."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, parse_text
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


@pytest.mark.parametrize("word", [5, -1, np.nan])
def test_a_replay_refuses_it_too_and_is_right_afterwards(word):
    net = Net(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 } } } '
        'layer { name: "y" type: "Embed" bottom: "x" top: "y" embed_param { num_output: 20 '
        'input_dim: 5 weight_filler { type: "gaussian" } bias_filler { value: 1 } } }',
        "TEST",
        device="cpu",
    )
    for _ in range(5):
        net.forward(x=np.array([0, 1, 2]))

    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="x", mentions=f"{word:g}"):
        net.forward(x=np.array([0, word, 2]))

    net.forward(x=np.array([4, 0, 3]))
    np.testing.assert_array_equal(net.blobs["y"].data, net.params["y"][0].data[[4, 0, 3]] + 1)


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


@pytest.mark.parametrize("wrong", [7, -1, np.nan])
def test_an_index_outside_the_table_is_found_in_every_pass(wrong, backend):
    """Later passes may repeat the calls of earlier ones."""
    text = """
        layer { name: "d" type: "Input" top: "x" input_param { shape { dim: 3 } } }
        layer { name: "e" type: "Embed" bottom: "x" top: "y"
                embed_param { num_output: 4 input_dim: 7 weight_filler { type: "gaussian" } } }
        layer { name: "p" type: "Power" bottom: "y" top: "z" power_param { scale: 2 } }"""
    net = Net(parse_text(text, NetParameter), "TEST", device=backend)
    for index in range(7):
        net.blobs["x"].data = np.full(3, index, np.float32)
        want = 2 * (net.params["e"][0].data[index] + net.params["e"][1].data)
        net.forward()
        np.testing.assert_allclose(net.blobs["z"].data, np.broadcast_to(want, (3, 4)), rtol=1e-6)

    net.blobs["x"].data = np.array([1, wrong, 2], np.float32)

    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="x"):
        net.forward()
