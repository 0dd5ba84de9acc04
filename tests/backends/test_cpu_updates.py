"""Updates on the cpu device against numpy's, bit for bit."""

import numpy as np
import pytest

from demitasse.backends.cpu import slow_reason
from demitasse.backends.numpy import updates as numpy_updates
from demitasse.backends.updates import Piece, Update
from demitasse.core.config import settings
from demitasse.core.device import Device

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

KINDS = {
    "SGD": 1, "Nesterov": 1, "AdaGrad": 1, "RMSProp": 1, "AdaDelta": 2, "Adam": 2, "AdamW": 2,
}  # fmt: skip
SIZES = (1, 37, 64, 100_001)


@pytest.fixture(params=[True, False], ids=["kernels", "no kernels"])
def kernels(request):
    """The backend's updates."""
    from demitasse.backends.cpu import updates

    with settings.override(jit=request.param):
        yield updates


def update(kind, **changes):
    numbers = {"rate": 0.05, "decay": 0.01, "momentum": 0.9, "decay2": 0.99, "delta": 1e-3}
    return Update(kind, **(numbers | changes))


def arrays(kind, size, dtype="float32", seed=3):
    rng = np.random.default_rng(seed)
    found = [rng.normal(size=size).astype(dtype) for _ in range(2 + KINDS[kind])]
    averages = 2 if kind in {"AdaGrad", "RMSProp", "AdaDelta"} else 3  # of squares
    return [*found[:averages], *(np.abs(array) for array in found[averages:])]


def run(kernels, u, given):
    pieces = [Piece(u, *(a.copy() for a in (w, g)), [a.copy() for a in h]) for w, g, *h in given]
    with Device("cpu").backend.enter():
        kernels.apply(pieces)
    return [[p.data, p.diff, *p.history] for p in pieces]


def same_bits(one, other):
    return all(
        np.array_equal(a, b)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_the_device_uses_them(kernels):
    assert Device("cpu").backend.updates is kernels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"decay": 0.0}, {"scale": 0.25}, {"scale": 0.25, "decay": 0.0}, {"momentum": 0.0}],
    ids=str,
)
def test_an_update_has_numpys_bits(kind, changes, kernels):
    u, given = update(kind, **changes), [arrays(kind, size) for size in SIZES]

    assert same_bits(run(kernels, u, given), run(numpy_updates, u, given))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_what_was_subtracted(kind, kernels):
    given = [arrays(kind, size) for size in SIZES]

    got = run(kernels, update(kind), given)

    for (before, *_), (after, value, *_) in zip(given, got, strict=True):
        np.testing.assert_array_equal(after, before - value)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_stays_zero(kind, kernels):
    given = [[np.zeros(50, np.float32) for _ in range(2 + KINDS[kind])]]

    got = run(kernels, update(kind), given)

    assert not np.any(got)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_threads_nor_places_change_a_bit(kind, kernels):
    u, whole = update(kind), arrays(kind, 200)

    with settings.override(threads=3):
        want = run(kernels, u, [whole])
    with settings.override(threads=1):
        alone = run(kernels, u, [whole])
    parts = run(kernels, u, [[a[3:] for a in whole]])

    assert same_bits(alone, want)
    assert same_bits(parts, [[a[3:] for a in want[0]]])


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_may_change_between_iterations(kind, kernels):
    given = [arrays(kind, 100)]
    run(kernels, update(kind), given)

    for changes in ({"rate": 0.5}, {"momentum": 0.5}, {"decay": 0.1}, {"delta": 0.1}):
        u = update(kind, **changes)
        got, want = run(kernels, u, given), run(numpy_updates, u, given)
        assert same_bits(got, want)


@pytest.mark.parametrize(
    ("changes", "dtype"), [({"l1": True}, "float32"), ({}, "float64")], ids=["L1", "doubles"]
)
def test_what_is_rare_is_numpys(changes, dtype, kernels):
    u, given = update("SGD", **changes), [arrays("SGD", 100, dtype)]

    assert same_bits(run(kernels, u, given), run(numpy_updates, u, given))
