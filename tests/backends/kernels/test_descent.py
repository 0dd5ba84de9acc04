"""Gradient descent with momentum, on arrays, against numpy's formulas, bit for bit."""

import numpy as np
import pytest
from stages import WIDTH

from demitasse.backends.kernels.descent import ALONE, Descent, Parameter
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.numpy import updates
from demitasse.backends.updates import Piece, Update

SIZES = (1, 7, 16, 37, 200)
CHANGES = [{}, {"decay": 0.0}, {"scale": 0.25}, {"momentum": 0.0}, {"scale": 0.3, "decay": 0.0}]


def update(kind, **changes):
    return Update(kind, **({"rate": 0.05, "decay": 0.01, "momentum": 0.9} | changes))


def arrays(size, seed=3):
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(3, size)).astype(np.float32)
    found[:, :: max(size // 3, 1)] = -0.0
    return tuple(found)


def copies(given):
    return [tuple(array.copy() for array in one) for one in given]


def ours(u, given, tuning):
    numbers = float(u.scale), u.decay, u.rate, u.momentum
    nesterov, decays = u.kind == "Nesterov", u.decay != 0
    Descent(tuning)([Parameter(one, nesterov, decays, numbers) for one in given])
    return given


def numpys(u, given):
    updates.apply([Piece(u, w, g, [h]) for w, g, h in given])
    return given


@WIDTH
@pytest.mark.parametrize("kind", ["SGD", "Nesterov"])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_bits_are_numpys(changes, kind, width):
    u, given = update(kind, **changes), [arrays(size) for size in SIZES]

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

    Descent(Tuning(width=width))(
        [
            Parameter(own, u.kind == "Nesterov", u.decay != 0, (1.0, u.decay, u.rate, u.momentum))
            for u, own in pairs
        ]
    )

    for (u, got), want in zip(pairs, copies(given), strict=True):
        np.testing.assert_array_equal(got, numpys(u, [want])[0])
