"""The counter-based generator and the fillers that draw from it."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.backends import random
from demitasse.core.device import Device
from demitasse.errors import ConfigError
from demitasse.io.proto import FillerParameter
from demitasse.layers.fillers import FILLERS, filling

ROUNDS = 10
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Encrypt one counter of four 64-bit words, as Philox4x64-10 is defined."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & random.MASK, (a >> 64) ^ c3 ^ k1, a & random.MASK
        k0, k1 = (k0 + WEYL[0]) & random.MASK, (k1 + WEYL[1]) & random.MASK
    return c0, c1, c2, c3


def test_the_generator_gives_the_published_words():
    low = block((0, 0, 0, 0), (0, 0))
    high = block((random.MASK,) * 4, (random.MASK,) * 2)

    assert low == (
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    )
    assert high == (
        0x87B092C3013FE90B,
        0x438C3C67BE8D0224,
        0x9CC7D7C69CD777B6,
        0xA09CAEBF594F0BA0,
    )


def test_words_are_the_halves_of_the_generators():
    blocks = [block((i, 5, 7, 0), (3, 0)) for i in range(3)]
    halves = [half for b in blocks for word in b for half in (word & 0xFFFFFFFF, word >> 32)]

    np.testing.assert_array_equal(random.bits(3, 5, 7, 18, 4), halves[4:22])


def test_words_are_the_same_on_every_device_and_from_any_start(backend):
    whole = random.bits(3, 5, 7, 40)
    device = Device(backend).backend

    there = device.to_host(device.random_bits(3, 5, 7, 13, 6))

    np.testing.assert_array_equal(there, whole[6:19])


@pytest.mark.parametrize("other", [(4, 5, 7), (3, 6, 7), (3, 5, 8)])
def test_seed_stream_and_pass_all_count(other):
    same = random.bits(3, 5, 7, 1000) == random.bits(*other, 1000)

    assert same.mean() < 0.01


def test_uniforms_fill_their_interval():
    drawn = random.uniform(1, 2, 3, 100_000)

    assert 0 <= drawn.min() < 1e-3
    assert 1 - 1e-3 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 5e-3
    assert abs(drawn.var() - 1 / 12) < 2e-3


def filled(shape, **fields):
    return filling(shape, FillerParameter(**fields), seed=1, stream=2)()


def test_constant():
    np.testing.assert_array_equal(filled((2, 3), value=7), np.full((2, 3), 7))


def test_uniform_and_gaussian_have_their_moments():
    even = filled((100, 1000), type="uniform", min=-2, max=6)
    normal = filled((100, 1000), type="gaussian", mean=3, std=0.5)

    assert -2 <= even.min() < -1.99 < 5.99 < even.max() <= 6
    assert abs(even.mean() - 2) < 0.02
    assert abs(normal.mean() - 3) < 0.01
    assert abs(normal.std() - 0.5) < 0.005


def test_sparse_gaussian_keeps_a_few_inputs_of_each_output():
    values = filled((50, 2000), type="gaussian", std=1, sparse=5)

    assert abs((values != 0).sum(axis=0).mean() - 5) < 0.3


def test_positive_unitball_rows_sum_to_one():
    values = filled((4, 3, 2), type="positive_unitball")

    assert (values > 0).all()
    np.testing.assert_allclose(values.sum(axis=(1, 2)), np.ones(4))


@pytest.mark.parametrize(("norm", "expected"), [(0, 300), (1, 600), (2, 450)])
def test_xavier_and_msra_scale_with_their_fan(norm, expected):
    shape = (200, 100, 3)  # fan in: all but axis 0; fan out: all but axis 1

    xavier = filled(shape, type="xavier", variance_norm=norm)
    msra = filled(shape, type="msra", variance_norm=norm)

    assert abs(xavier.max() - np.sqrt(3 / expected)) < 1e-3 * xavier.max()
    assert abs(msra.std() - np.sqrt(2 / expected)) < 0.02 * msra.std()


def test_bilinear_interpolates():
    values = filled((2, 1, 4, 4), type="bilinear")

    np.testing.assert_allclose(values[0, 0, 0], np.array([0.25, 0.75, 0.75, 0.25]) * 0.25)
    np.testing.assert_array_equal(values[0], values[1])


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (2, [0.5, 0.5]),
        (3, [0.5, 1, 0.5]),
        (6, [1 / 6, 0.5, 5 / 6, 5 / 6, 0.5, 1 / 6]),
        (7, [0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25]),
    ],
)
def test_a_bilinear_filler_is_symmetric(size, line):
    values = filled((1, 1, size, size), type="bilinear")

    np.testing.assert_allclose(values[0, 0], np.outer(line, line))


@pytest.mark.parametrize(
    ("fields", "shape", "mentions"),
    [
        ({"type": "xaver"}, (2,), "'xaver'"),
        ({"type": "uniform", "min": 2, "max": 1}, (2,), ["min", "2.0", "max", "1.0"]),
        ({"type": "bilinear"}, (2, 2), "bilinear"),
        ({"type": "bilinear"}, (1, 1, 2, 3), "bilinear"),
        ({"type": "xavier", "sparse": 3}, (2, 2), "'sparse'"),
    ],
)
def test_fillers_refuse(fields, shape, mentions):
    with expect_error(ConfigError, mentions=mentions):
        filled(shape, **fields)


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (2, 0, 3, 3), (2, 2, 0, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize(
    "kind", ["constant", "uniform", "gaussian", "positive_unitball", "bilinear"]
)
def test_nothing_is_filled_with_nothing(kind, shape):
    sparse = {"sparse": 1} if kind == "gaussian" else {}

    assert filled(shape, type=kind, max=1, **sparse).shape == shape


@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("kind", ["xavier", "msra"])
def test_fillers_that_divide_by_a_size_refuse_nothing(kind, shape):
    with expect_error(ConfigError, mentions=f"'{kind}'"):
        filled(shape, type=kind)


def test_a_seed_gives_the_same_weights_everywhere():
    for kind in FILLERS:
        fields = {"type": kind, "max": 1}
        np.testing.assert_array_equal(
            filled((2, 1, 3, 3), **fields), filled((2, 1, 3, 3), **fields)
        )
