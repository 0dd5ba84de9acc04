"""The steps of recurrent layers on arrays, against their formulas."""

import ctypes
from copy import copy

import numpy as np
import pytest
from recurrent_weights import backward_weights, forward_weights
from stages import WIDTH, normal, where

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import recurrence
from demitasse.backends.kernels.recurrence import GATES, Recurrence
from demitasse.backends.kernels.tuning import Tuning

CELL = pytest.mark.parametrize("cell", GATES)
THREADS = pytest.mark.parametrize("threads", [1, 2, 3])
SIZES = pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (3, 2, 5), (4, 1, 16), (5, 7, 21), (2, 13, 40)], ids=str
)
MARK = 7.5
"""Stands behind each array, and must stay there."""


@pytest.fixture(autouse=True)
def few_each(monkeypatch):
    """Let threads divide small steps too."""
    monkeypatch.setattr(recurrence, "FEWEST_EACH", 1)


class Case:
    """Arrays of T steps of N sequences with H hidden values; ``run`` computes the steps."""

    def __init__(self, cell, sizes, *, static=False):
        t, n, h = sizes
        self.cell, self.sizes, self.wide = cell, sizes, GATES[cell] * h
        self.z, self.weight = normal(t, n, self.wide), normal(self.wide, h, seed=1) / h**0.5
        self.cont = (np.random.default_rng(2).random((t, n)) < 0.7).astype(np.float32)
        self.states = [normal(n, h, seed=3), normal(n, h, seed=4)][: 2 if cell == "LSTM" else 1]
        self.static = normal(n, self.wide, seed=5) if static else None

    def run(self, width, threads=1):
        """Return all hidden states, and the states at the end."""
        hidden, states = guarded(shape=self.sizes), [guarded(state) for state in self.states]
        tuning = Tuning(width=width, threads=threads)
        static = None if self.static is None else guarded(self.static)
        run = Recurrence(self.cell, guarded(self.z), tuning, static=static)
        run.forward(self.packed(width), guarded(self.cont), states, hidden, states)
        for array in (hidden, *states):
            expect_guarded(array)
        return hidden, states

    def packed(self, width):
        """Return the weight in blocks of a vector's hidden values."""
        return guarded(forward_weights(self.weight, width))

    def defined(self):
        """The same in float64, by the formulas."""
        h, *rest = (state.astype(float) for state in self.states)
        hidden, c = [], rest[0] if rest else None
        steps = zip(self.z.astype(float), self.cont.astype(float)[..., None], strict=True)
        for inputs, cont in steps:
            total = inputs + (0 if self.static is None else self.static)
            total = total + (cont * h) @ self.weight.T.astype(float)
            if self.cell == "LSTM":
                i, f, o, g = np.split(total, 4, axis=1)
                c = cont * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            else:
                h = np.tanh(total)
            hidden.append(h)
        return np.array(hidden), [h] if c is None else [h, c]


def sigmoid(x):
    return 0.5 * np.tanh(0.5 * x) + 0.5


def guarded(values=None, shape=None):
    """Return an aligned copy, or NaN of a shape, with numbers behind it that must stay."""
    shape = values.shape if shape is None else shape
    size = int(np.prod(shape))
    memory = aligned(size + 16)
    memory[:size], memory[size:] = np.nan, MARK
    array = memory[:size].reshape(shape)
    if values is not None:
        array[...] = values
    return array


def expect_guarded(array):
    """Nothing was written behind it."""
    behind = (ctypes.c_float * 16).from_address(where(array) + array.nbytes)
    assert list(behind) == [MARK] * 16


def expect_close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-6)


@CELL
@WIDTH
@THREADS
@SIZES
def test_steps_are_those_of_the_formulas(sizes, threads, width, cell):
    case = Case(cell, sizes)

    hidden, states = case.run(width, threads)

    want_hidden, want_states = case.defined()
    expect_close(hidden, want_hidden)
    for got, want in zip(states, want_states, strict=True):
        expect_close(got, want)


@CELL
@WIDTH
@SIZES
def test_a_static_input_is_added_in_every_step(sizes, width, cell):
    case = Case(cell, sizes, static=True)

    expect_close(case.run(width)[0], case.defined()[0])


@CELL
@WIDTH
@pytest.mark.parametrize("static", [False, True])
def test_the_bits_do_not_depend_on_the_number_of_threads(static, width, cell):
    case = Case(cell, (6, 5, 45), static=static)

    one, two, three = (case.run(width, threads) for threads in (1, 2, 3))

    for many in (two, three):
        np.testing.assert_array_equal(many[0], one[0])
        for got, want in zip(many[1], one[1], strict=True):
            np.testing.assert_array_equal(got, want)


@CELL
@WIDTH
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("of", ["z", "weight", "states", "static"])
def test_nan_and_infinity_go_where_the_formulas_send_them(of, value, width, cell):
    case = Case(cell, (4, 3, 19), static=True)
    target = getattr(case, of)
    (target[-1] if of == "states" else target)[1, 2] = value

    with np.errstate(invalid="ignore"):
        want = case.defined()[0]
    hidden = case.run(width)[0]

    np.testing.assert_array_equal(np.isnan(hidden), np.isnan(want))
    expect_close(hidden[~np.isnan(want)], want[~np.isnan(want)])


class Learning(Case):
    """What learns from gradients ``dy`` of its hidden states."""

    def __init__(self, cell, sizes):
        super().__init__(cell, sizes)
        self.dy = normal(*sizes, seed=6)

    def run(self, width, threads=1):
        """Return the hidden states, the ones that steps begin with, and the gates' gradients."""
        t, n, _ = self.sizes
        z, cont, hidden = guarded(self.z), guarded(self.cont), guarded(shape=self.sizes)
        states, dz = [guarded(state) for state in self.states], guarded(shape=(t, n, self.wide))
        run = Recurrence(self.cell, z, Tuning(width=width, threads=threads), trains=True)
        run.forward(self.packed(width), cont, states, hidden, states)
        known = z if self.cell == "LSTM" else hidden
        weight = guarded(backward_weights(self.weight, width, run.packed))
        for _ in range(2):  # nothing is left of what was computed before
            run.backward(weight, cont, self.dy, known, dz)
        for array in (z, hidden, dz, *states):
            expect_guarded(array)
        return hidden, run.before, dz

    def loss(self, z):
        """The sum of the hidden states times their gradients."""
        changed = copy(self)
        changed.z = z
        return np.sum(changed.defined()[0] * self.dy.astype(float))

    def differences(self, places, step=1e-5):
        """The gradients of some inputs of the gates, by differences."""
        found, z = [], self.z.astype(float)
        for place in places:
            up, down = z.copy(), z.copy()
            up[place] += step
            down[place] -= step
            found.append((self.loss(up) - self.loss(down)) / (2 * step))
        return np.array(found)


@CELL
@WIDTH
@THREADS
@SIZES
def test_gradients_are_those_of_the_formulas(sizes, threads, width, cell):
    case = Learning(cell, sizes)
    rng = np.random.default_rng(7)
    places = [tuple(rng.integers(0, n) for n in case.z.shape) for _ in range(20)]

    hidden, before, dz = case.run(width, threads)

    expect_close(hidden, case.defined()[0])
    h = np.concatenate([case.states[0][None], hidden[:-1]])
    np.testing.assert_array_equal(before, case.cont[..., None] * h)
    got = np.array([dz[place] for place in places])
    np.testing.assert_allclose(got, case.differences(places), rtol=1e-4, atol=1e-5)


@CELL
@WIDTH
def test_the_bits_of_gradients_do_not_depend_on_the_number_of_threads(width, cell):
    case = Learning(cell, (6, 15, 150))

    one, two, three = (case.run(width, threads) for threads in (1, 2, 3))

    for many in (two, three):
        for got, want in zip(many, one, strict=True):
            np.testing.assert_array_equal(got, want)


@CELL
@WIDTH
def test_a_gradient_that_is_nan_reaches_earlier_steps_of_its_sequence_alone(width, cell):
    case = Learning(cell, (4, 3, 19))
    case.cont[...] = 1
    case.dy[2, 1, 5] = np.nan

    dz = case.run(width)[2]

    assert np.isnan(dz[:2, 1]).all()
    assert np.isnan(dz[2, 1]).any()
    assert not np.isnan(dz[3]).any()
    assert not np.isnan(dz[:, [0, 2]]).any()
