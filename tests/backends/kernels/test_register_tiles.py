"""Register tiles of a row, some of which reach beyond the image."""

import numpy as np
import pytest
from stages import WIDTH, called, exported

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import plan_depthwise
from demitasse.backends.kernels.language.structs import Arguments
from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import TileFields, Tiles, for_each_tile, inside


@pytest.mark.parametrize(
    ("first", "count", "columns", "want"),
    [
        (0, 3, 5, [0, 1, 2]), (-1, 3, 5, [1, 2]), (3, 3, 5, [0, 1]), (-1, 4, 2, [1, 2]),
        (-4, 3, 5, []), (6, 3, 5, []),
    ],
)  # fmt: skip
def test_columns_inside_an_image(first, count, columns, want):
    assert list(inside(first, count, columns)) == want


def tiles_of(columns, *, stride=1, pad=1, width=16):
    top = (columns + 2 * pad - 3) // stride + 1
    op = ops.Conv(
        "float32", (1, 16, columns, columns), (1, 16, top, top), 1, (3, 3), (stride,) * 2,
        (pad,) * 2, (1, 1), group=16, bias=True,
    )  # fmt: skip
    return plan_depthwise(op, op.bottom, op.top, Tuning(width)).tiles


def test_a_row_has_code_for_its_ends_and_for_all_tiles_between():
    assert tiles_of(56).cases == [(range(1, 9),), (range(9),), (range(8),)]
    assert tiles_of(14).cases == [(range(1, 9),), (range(8),)]
    assert tiles_of(7).cases == [(range(1, 8),)]
    assert tiles_of(112, stride=2).cases == [(range(1, 15),), (range(15),)]
    assert tiles_of(58, pad=0).cases == [(range(9),)]
    assert str(tiles_of(56)) == "1to9_0to9_0to8"


@WIDTH
def test_each_tile_runs_the_code_of_its_case(width):
    tiles = Tiles(((0, (range(1, 4),)), (3, (range(4),)), (6, (range(4),)), (8, (range(2),))))
    numbers = aligned(16 * width)

    def write(k):
        target, fields = k.arguments[0], TileFields._read(iter(k.load_words(k.arguments[1], 2)))

        def body(first, case):
            [columns] = case
            k.store(k.constant(len(columns)), target + first * (width * FLOAT))

        for_each_tile(k, fields, tiles, body)

    kernel = exported(f"tiles_{width}", width, write, arguments=2)
    arguments = Arguments(TileFields.of(tiles))
    called(kernel, numbers, np.frombuffer(arguments._words, np.int64))

    assert numbers.reshape(16, width)[[0, 3, 6, 8], 0].tolist() == [3, 4, 4, 2]
    assert np.count_nonzero(numbers.reshape(16, width)[:, 0]) == 4
