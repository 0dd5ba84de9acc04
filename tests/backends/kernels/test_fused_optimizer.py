"""Gradient descent of every kind, on arrays, against numpy's formulas, bit for bit."""

import numpy as np
import pytest
from stages import WIDTH

from demitasse.backends.kernels.fused_optimizer import ALONE, FusedOptimizer
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.numpy import updates as numpy_updates
from demitasse.backends.updates import KERNEL_FORMULAS, Piece, Update

SIZES = (1, 7, 16, 37, 200)
CHANGES = [{}, {"decay": 0.0}, {"scale": 0.25}, {"momentum": 0.0}, {"scale": 0.3, "decay": 0.0}]
HISTORIES = {name: rule.histories for name, rule in KERNEL_FORMULAS.items()}


def update(kind, **changes):
    numbers = {
        "rate": 0.05, "decay": 0.01, "momentum": 0.9, "decay2": 0.99, "delta": 1e-3,
        "correction": 0.7,
    }  # fmt: skip
    return Update(kind, **(numbers | changes))


def arrays(size, seed=3, histories=1):
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(2 + histories, size)).astype(np.float32)
    found[:, :: max(size // 3, 1)] = -0.0
    return tuple(found)


def copies(given):
    return [tuple(array.copy() for array in one) for one in given]


def parameter(u, given):
    return Piece(u, *given[:2], given[2:])


def ours(u, given, tuning):
    FusedOptimizer(tuning)([parameter(u, one) for one in given])
    return given


def numpys(u, given):
    numpy_updates.apply([Piece(u, w, g, history) for w, g, *history in given])
    return given


@WIDTH
@pytest.mark.parametrize("kind", KERNEL_FORMULAS)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_bits_are_numpys(changes, kind, width):
    u = update(kind, **changes)
    given = [arrays(size, histories=HISTORIES[kind]) for size in SIZES]
    for one in given:
        for history in one[2:]:
            if kind != "SGD":
                np.abs(history, out=history)  # as averages of squares are

    got, want = ours(u, copies(given), Tuning(width=width)), numpys(u, copies(given))

    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(
            np.array(mine).view(np.int32), np.array(theirs).view(np.int32)
        )


@WIDTH
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_elements_whatever_parameters_they_belong_to(threads, width):
    given = [arrays(size) for size in (5, ALONE, 3, 1000, 17)]

    got = ours(update("SGD"), copies(given), Tuning(width=width, threads=threads))

    for mine, theirs in zip(got, numpys(update("SGD"), copies(given)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@WIDTH
def test_each_parameter_has_its_own_numbers(width):
    given = [arrays(20), arrays(20)]
    one, other = update("SGD"), update("Nesterov", rate=0.5, decay=0.0)
    pairs = list(zip((one, other), copies(given), strict=True))

    FusedOptimizer(Tuning(width=width))([parameter(u, own) for u, own in pairs])

    for (u, got), want in zip(pairs, copies(given), strict=True):
        np.testing.assert_array_equal(got, numpys(u, [want])[0])
