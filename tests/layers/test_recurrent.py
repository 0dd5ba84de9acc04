"""LSTM, RNN and LSTMUnit."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

T, N, D, H, S = 4, 3, 2, 5, 6
RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (T, N, D))
STATIC = RNG.normal(0, 1, (N, S))
FRESH = np.array([[0, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]], float)  # all sequences begin
STATES = [RNG.normal(0, 1, (1, N, H)) for _ in range(2)]
KINDS = pytest.mark.parametrize("kind", ["LSTM", "RNN"])


def text(kind, fields="", more=""):
    return (
        f'type: "{kind}" {more} recurrent_param {{ num_output: {H} {fields} '
        'weight_filler { type: "uniform" min: -1 max: 1 } '
        'bias_filler { type: "uniform" min: -1 max: 1 } }'
    )


def exposed(kind):
    tops = "".join(f' top: "t{i}"' for i in range({"LSTM": 3, "RNN": 2}[kind]))
    return text(kind, "expose_hidden: true", tops)


def states_of(kind):
    return STATES[: {"LSTM": 2, "RNN": 1}[kind]]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(params, x, cont, h, c, static=None):
    *inputs, recurrent = params
    z = x @ inputs[0].T + inputs[1]
    if static is not None:
        z = z + static @ inputs[2].T
    outputs = []
    for t in range(len(x)):
        gate = cont[t][:, None]
        i, f, o, g = np.split(z[t] + (gate * h) @ recurrent.T, 4, axis=1)
        c = gate * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs), [h, c]


def rnn(params, x, cont, h, static=None):
    *inputs, recurrent, out, out_bias = params
    z = x @ inputs[0].T + inputs[1]
    if static is not None:
        z = z + static @ inputs[2].T
    outputs = []
    for t in range(len(x)):
        h = np.tanh(z[t] + (cont[t][:, None] * h) @ recurrent.T)
        outputs.append(np.tanh(h @ out.T + out_bias))
    return np.array(outputs), [h]


REFERENCE = {"LSTM": lstm, "RNN": rnn}


def values(one):
    return [np.array(blob.data) for blob in one.params]


@KINDS
def test_one_step_follows_another(kind, backend):
    one = make_layer(text(kind), [X, FRESH], device=backend)
    zeros = [np.zeros((N, H))] * len(states_of(kind))

    [y] = one.forward()

    np.testing.assert_allclose(y, REFERENCE[kind](values(one), X, FRESH, *zeros)[0])


def test_parameters_come_in_caffes_order():
    plain = {kind: make_layer(text(kind), [X, FRESH]) for kind in REFERENCE}
    static = {kind: make_layer(text(kind), [X, FRESH, STATIC]) for kind in REFERENCE}

    def shapes(one):
        return [blob.shape for blob in one.params]

    assert shapes(plain["LSTM"]) == [(4 * H, D), (4 * H,), (4 * H, H)]
    assert shapes(static["LSTM"]) == [(4 * H, D), (4 * H,), (4 * H, S), (4 * H, H)]
    assert shapes(plain["RNN"]) == [(H, D), (H,), (H, H), (H, H), (H,)]
    assert shapes(static["RNN"]) == [(H, D), (H,), (H, S), (H, H), (H, H), (H,)]


@KINDS
def test_a_static_input_comes_in_at_every_step(kind, backend):
    one = make_layer(text(kind), [X, FRESH, STATIC], device=backend)
    zeros = [np.zeros((N, H))] * len(states_of(kind))

    [y] = one.forward()

    np.testing.assert_allclose(y, REFERENCE[kind](values(one), X, FRESH, *zeros, STATIC)[0])


@KINDS
def test_inputs_may_have_more_axes(kind):
    x = RNG.normal(0, 1, (T, N, 2, 3))

    [y] = make_layer(text(kind), [x, FRESH]).forward()
    [flat] = make_layer(text(kind), [x.reshape(T, N, 6), FRESH]).forward()

    np.testing.assert_array_equal(y, flat)


@KINDS
def test_the_state_goes_on_in_the_next_pass_where_cont_is_1(kind, backend):
    one = make_layer(text(kind), [X, FRESH], device=backend)
    cont = np.ones((T, N))
    state = [np.zeros((N, H))] * len(states_of(kind))
    for _ in range(3):
        [y] = one.forward(X, cont)

        want, state = REFERENCE[kind](values(one), X, cont, *state)
        np.testing.assert_allclose(y, want)


@KINDS
def test_the_state_does_not_depend_on_what_happens_to_the_top(kind, backend):
    one = make_layer(text(kind), [X, np.ones((T, N))], device=backend)
    other = make_layer(text(kind), [X, np.ones((T, N))], device=backend)
    for single in (one, other):
        single.forward()
    one.top[0].data = 99

    np.testing.assert_array_equal(one.forward(), other.forward())


@KINDS
def test_exposed_states_come_from_bottoms_and_go_to_tops(kind, backend):
    states = states_of(kind)
    cont = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1], [0, 1, 1]], float)
    one = make_layer(exposed(kind), [X, cont, *states], device=backend)
    want, last = REFERENCE[kind](values(one), X, cont, *[state[0] for state in states])
    for _ in range(2):  # nothing is carried over
        y, *ends = one.forward()

        np.testing.assert_allclose(y, want)
        for end, state in zip(ends, last, strict=True):
            np.testing.assert_allclose(end, state[None])


@KINDS
@pytest.mark.parametrize("static", [False, True])
def test_gradients(kind, static, backend):
    bottoms = [X, FRESH, STATIC] if static else [X, FRESH]

    expect_gradients(text(kind), *bottoms, device=backend)


@KINDS
def test_exposed_states_have_no_gradient(kind, backend):
    states = states_of(kind)
    one = make_layer(exposed(kind), [X, FRESH, STATIC, *states], device=backend)
    plain = make_layer(text(kind), [X, FRESH, STATIC], device=backend)
    dy = RNG.normal(0, 1, (T, N, H))
    one.forward()
    plain.forward()

    below = one.backward(dy, *states, propagate_down=[True, False, True, *[True] * len(states)])

    for got, want in zip(below, plain.backward(dy), strict=False):
        if want is not None:
            np.testing.assert_allclose(got, want)
    for got in below[3:]:
        np.testing.assert_array_equal(got, np.zeros((1, N, H)))


@KINDS
def test_the_number_of_sequences_may_change(kind, backend):
    one = make_layer(text(kind), [X, FRESH], device=backend)
    one.forward()

    [y] = one.forward(X[:, :1], FRESH[:, :1])

    zeros = [np.zeros((1, H))] * len(states_of(kind))
    want = REFERENCE[kind](values(one), X[:, :1], FRESH[:, :1], *zeros)[0]
    np.testing.assert_allclose(y, want)


@KINDS
def test_refuses_a_missing_num_output(kind):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="recurrent_param.num_output"):
        make_layer(f'type: "{kind}"', [X, FRESH])


@KINDS
@pytest.mark.parametrize(
    ("x", "cont"), [(X[:, :, 0], FRESH), (X, FRESH[:2]), (X, FRESH[:, :2]), (X, FRESH[..., None])]
)
def test_refuses_bottoms_that_are_no_sequences(kind, x, cont):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["(T, N, ...)", "(T, N)"]):
        make_layer(text(kind), [x, cont])


@KINDS
@pytest.mark.parametrize("static", [STATIC[:2], np.zeros(N)])
def test_refuses_a_static_input_of_other_sequences(kind, static):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="3 sequences"):
        make_layer(text(kind), [X, FRESH, static])


@KINDS
def test_refuses_another_number_of_steps(kind):
    one = make_layer(text(kind), [X, FRESH])

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom0", got=2, expected=4):
        one.forward(X[:2], FRESH[:2])


@KINDS
def test_refuses_inputs_of_another_size(kind):
    one = make_layer(text(kind), [X, FRESH, STATIC])

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom0", got=1):
        one.forward(X[..., :1], FRESH, STATIC)
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom2", got=1):
        one.forward(X, FRESH, STATIC[:, :1])


@KINDS
def test_refuses_a_state_of_another_shape(kind):
    states = [state[:, :, :2] for state in states_of(kind)]

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["(1, 3, 5)", "(1, 3, 2)"]):
        make_layer(exposed(kind), [X, FRESH, *states])


@pytest.mark.parametrize(
    ("fields", "bottoms", "tops", "mentions"),
    [
        ("", 1, 1, ["2", "3", "1"]),
        ("", 4, 1, ["2", "3", "4"]),
        ("", 2, 2, ["1", "2"]),
        ("expose_hidden: true", 2, 3, ["4", "5", "2"]),
        ("expose_hidden: true", 4, 1, ["3", "1"]),
    ],
)
def test_refuses_other_numbers_of_blobs(fields, bottoms, tops, mentions):
    names = "".join(f' top: "t{i}"' for i in range(tops))

    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, mentions=mentions):
        make_layer(text("LSTM", fields, names), [X, FRESH, *STATES][:bottoms])


@KINDS
def test_knows_no_gradient_of_the_indicators(kind):
    one = make_layer(text(kind), [X, FRESH])
    one.forward()

    with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom1"):
        one.backward(propagate_down=[True, True])


# -- LSTMUnit --------------------------------------------------------------------------------------

CELL = RNG.normal(0, 1, (1, N, H))
GATES = RNG.normal(0, 1, (1, N, 4 * H))
CONT = np.array([[1.0, 0.0, 1.0]])


def test_a_unit_computes_one_step(backend):
    c, h = make_layer('type: "LSTMUnit"', [CELL, GATES, CONT], device=backend).forward()

    i, f, o, g = np.split(GATES[0], 4, axis=1)
    want = CONT[0][:, None] * sigmoid(f) * CELL[0] + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(c, want[None])
    np.testing.assert_allclose(h, (sigmoid(o) * np.tanh(want))[None])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_gate_inputs_do_not_overflow(dtype, backend):
    c, h = make_layer(
        'type: "LSTMUnit"', [CELL, 1e4 * GATES, CONT], dtype=dtype, device=backend
    ).forward()

    assert np.isfinite(c).all()
    assert np.isfinite(h).all()


def test_gradients_of_a_unit(backend):
    expect_gradients('type: "LSTMUnit"', CELL, GATES, [[1.0, 0.0, 0.5]], device=backend)


def test_a_unit_knows_no_gradient_of_the_indicators():
    one = make_layer('type: "LSTMUnit"', [CELL, GATES, CONT])
    one.forward()

    with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom2"):
        one.backward(propagate_down=[True, True, True])


@pytest.mark.parametrize(
    "bottoms",
    [
        (CELL[0], GATES, CONT),
        (np.zeros((2, N, H)), GATES, CONT),
        (CELL, GATES[:, :, :7], CONT),
        (CELL, GATES, CONT[0]),
        (CELL, GATES, CONT[:, :2]),
    ],
)
def test_a_unit_refuses_other_shapes(bottoms):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(1, N, H)"):
        make_layer('type: "LSTMUnit"', bottoms)
