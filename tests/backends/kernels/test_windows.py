"""How rows of windows are taken a few at a time."""

import pytest

from demitasse.backends import ops
from demitasse.backends.kernels.windows import RegisterTile, columns_read, plan_tile


def convolution(stride=1, dilation=1):
    x = y = (1, 16, 9, 9)
    return ops.Conv(
        "float32", x, y, 1, (3, 3), (1, stride), (1, 1), (1, dilation), group=1, bias=True
    )


@pytest.mark.parametrize(
    ("columns", "most", "pixels"),
    [(1, 8, 1), (7, 8, 7), (8, 8, 8), (9, 8, 5), (28, 8, 7), (56, 14, 14), (128, 16, 16)],
)
def test_turns_are_as_long_as_rows_allow(columns, most, pixels):
    assert plan_tile(columns, most, convolution()) == RegisterTile(pixels, 3, 1, 1)


def test_each_column_has_the_taps_and_windows_that_see_it():
    neighbours = columns_read(plan_tile(2, 8, convolution()))
    apart = columns_read(plan_tile(2, 8, convolution(stride=3, dilation=2)))

    assert neighbours == {0: [(0, 0)], 1: [(0, 1), (1, 0)], 2: [(1, 1), (2, 0)], 3: [(2, 1)]}
    assert apart == {
        0: [(0, 0)], 2: [(1, 0)], 3: [(0, 1)], 4: [(2, 0)], 5: [(1, 1)], 7: [(2, 1)],
    }  # fmt: skip


@pytest.mark.parametrize(("stride", "dilation", "span"), [(1, 1, 4), (3, 2, 8)])
def test_a_turn_spans_the_columns_that_it_sees(stride, dilation, span):
    tile = plan_tile(2, 8, convolution(stride, dilation))

    assert tile.span == span == max(columns_read(tile)) + 1
