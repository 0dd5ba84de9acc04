"""What our kernels take of convolutions, by sizes alone; and how images are cut into tiles."""

import numpy as np
import pytest

from demitasse.backends import ops
from demitasse.backends.kernels.few_inputs import plan_direct
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import WinogradSchedule, pays, plan_winograd
from demitasse.backends.kernels.winograd.matrices import (
    ALONE,
    FINITE,
    SIX,
    filtering,
    has_filtering,
    matrices,
)
from demitasse.backends.step import Declined
from demitasse.core.config import settings

WIDTH = pytest.mark.parametrize("width", [8, 16])


def convolution(x, m, kernel):
    """A convolution without zeros around, and its output's shape."""
    y = (x[0], m, *(size - taps + 1 for size, taps in zip(x[2:], kernel, strict=True)))
    ones = (1, 1)
    return ops.Conv("float32", x, y, 1, kernel, ones, (0, 0), ones, group=1, bias=True), y


def takes(choice, *args, **kwargs):
    """Return whether a kernel takes a convolution."""
    try:
        choice(*args, **kwargs)
    except Declined:
        return False
    return True


@WIDTH
def test_tiles_are_for_many_channels(width):
    def tiled(channels, images=8):
        x = (images, channels, 16, 16)
        op, y = convolution(x, channels, (3, 3))
        return takes(plan_winograd, op, x, y, Tuning(width, threads=2), training=True)

    assert tiled(256)
    assert not tiled(16, images=1)
    assert not tiled(width - 1)


@WIDTH
@pytest.mark.parametrize(
    ("x", "m", "kernel", "ours"),
    [
        ((64, 1, 28, 28), 20, (5, 5), True),
        ((64, 1, 28, 28), 20, (1, 17), True),
        ((1, 1, 1, 9000), 20, (1, 8192), False),
        ((64, 1, 28, 28), 20, (1, 1), False),
        ((64, 1, 28, 28), 7, (5, 5), False),
        ((64, 16, 28, 28), 20, (5, 5), False),
        ((1, 1, 12, 12), 20, (5, 5), True),
    ],
    ids=["usual", "wide", "too wide", "no window", "few filters", "many channels", "small"],
)
def test_direct_convolution_is_for_few_channels(x, m, kernel, ours, width):
    op, y = convolution(x, m, kernel)

    taken = takes(plan_direct, op, x, y, Tuning(width, threads=2))

    assert taken == ours


@WIDTH
def test_a_tuning_decides_in_place_of_costs(width):
    few, many = (8, 1, 28, 28), (1, width, 8, 8)

    def taken(**choice):
        tuning = Tuning(width, **choice)
        op, y = convolution(many, width, (3, 3))
        tiled = takes(plan_winograd, op, many, y, tuning, training=True)
        op, y = convolution(few, 20, (5, 5))
        return tiled, takes(plan_direct, op, few, y, tuning)

    assert taken(always=frozenset({"winograd"})) == (True, True)
    assert taken(without=frozenset({"winograd", "few_inputs"})) == (False, False)


def test_settings_forbid_kernels():
    tuning = Tuning(8, always=frozenset({"winograd"}))

    with settings.override(jit=False, winograd=False):
        changed = tuning.as_set(threads=3)

    assert (changed.width, changed.threads, changed.without) == (0, 3, {"winograd"})


ROWS = [
    (taps, points) for table in (FINITE, ALONE) for taps, known in table.items() for points in known
]


@pytest.mark.parametrize(("taps", "points"), ROWS)
def test_products_at_the_positions_are_the_filtered_row(taps, points):
    of, rng = matrices(taps, points), np.random.default_rng(0)
    row, taken = rng.normal(size=len(of.input)), rng.normal(size=taps)

    got = of.output @ ((of.filter.astype(float) @ taken) * (of.input.astype(float) @ row))

    assert of.outputs + taps - 1 == len(row)
    np.testing.assert_allclose(got, np.correlate(row, taken, "valid"), atol=2e-6)


def test_a_product_at_the_last_point_goes_to_every_output():
    for taps, points in ROWS:
        of = matrices(taps, points)
        assert np.array_equal(of.output[:, -1], np.ones(of.outputs))


def test_two_taps_have_the_tiles_that_cost_the_fewest_products():
    outputs = [filtering((4, 4), (size, size), (2, 2)).outputs for size in (4, 5, 8, 17, 64)]

    assert outputs == [(4, 4), (5, 5), (4, 4), (5, 5), (5, 5)]


def test_large_windows_have_the_parts_that_cost_the_fewest_products():
    sides = [filtering((size, size), (46, 46)).down for size in (6, 7, 8, 9, 10, 11, 14, 15)]

    assert [one.taps for one in sides] == [3, 4, 4, 5, 5, 4, 5, 5]
    assert [one.filters for one in sides] == [2, 2, 2, 2, 2, 3, 3, 3]
    assert [one.last for one in sides] == [2, 1, 2, 1, 2, 2, 2, 3]
    assert filtering((7, 7), (14, 14)).parts == 1  # reading the filters of parts takes longer
    assert not any(has_filtering((size, 3), (1, 1)) for size in (13, 16, 17))


@pytest.mark.parametrize(("window", "step", "phases"), [(4, 2, 2), (5, 2, 1), (7, 3, 1), (3, 1, 1)])
def test_phases_that_have_the_last_tap(window, step, phases):
    assert matrices(window, SIX, step).last == phases


def is_chosen(*shape, training, width=8):
    tiling = stack(*shape, width=width)
    return pays(tiling, shape[0] * shape[3] ** 2, training=training)


def stack(n, c, m, size, taps=3, width=8, threads=2):
    pad = (taps // 2, taps // 2)
    return WinogradSchedule(
        filtering((taps, taps), (size, size)),
        n,
        c,
        (size, size),
        m,
        1,
        pad,
        (size, size),
        Tuning(width, threads),
    )


@WIDTH
def test_tiles_are_taken_where_there_is_much_to_multiply(width):
    assert is_chosen(8, 256, 256, 14, training=False, width=width)
    assert is_chosen(8, 64, 64, 28, training=True, width=width)
    assert is_chosen(8, 512, 512, 7, training=True, width=width)
    assert not is_chosen(1, 16, 16, 14, training=False, width=width)


def test_filters_that_change_in_every_pass_cost_more():
    chosen = [is_chosen(2, 512, 512, 7, training=training) for training in (False, True)]

    assert chosen == [True, False]


def test_few_strips_have_few_chunks():
    assert stack(1, 16, 16, 7, threads=4).chunks == 2
    assert stack(8, 16, 16, 7, threads=4).chunks == 4


def test_code_names_tiles_and_instructions():
    assert stack(1, 16, 16, 7, width=8).code == "winograd 4x4 llvm:avx2"
    assert stack(1, 16, 16, 7, width=16).code == "winograd 4x4 llvm:avx512"


def test_points_are_an_odd_number_of_cache_lines_apart():
    some = stack(8, 64, 96, 14)

    assert [
        count % 32
        for count in (
            some.tile_position_stride,
            some.sum_position_stride,
            some.filter_position_stride,
        )
    ] == [16, 16, 16]


def test_threads_share_tiles_whose_strips_do_not_divide():
    assert stack(1, 128, 128, 28, threads=2).shared
    assert not stack(1, 128, 128, 28, threads=1).shared
    assert not stack(1, 128, 128, 32, threads=2).shared
    assert not stack(1, 16, 16, 10, threads=2).shared  # too small
    assert not stack(1, 128, 128, 28, threads=2).filter_gradient.shared


def test_threads_share_what_many_filters_are_multiplied_with():
    assert stack(8, 512, 512, 7).shared
    assert not stack(8, 128, 128, 28).shared
