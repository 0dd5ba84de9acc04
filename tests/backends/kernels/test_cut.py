"""Strips are cut out of images, copied with zeros around, and taken to the points."""

import numpy as np
import pytest
from correlate import images, windows
from stages import WIDTH, exported
from tilings import tiling

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.structs import Arguments, Struct
from demitasse.backends.kernels.language.words import FLOAT, Word
from demitasse.backends.kernels.winograd.cut import ImageFields, Piece, Points, cut, image_values
from demitasse.backends.kernels.winograd.matrices import matrices
from demitasse.backends.kernels.winograd.scratch import Scratch
from demitasse.backends.kernels.winograd.strips import StripFields, each_block
from demitasse.backends.kernels.winograd.transforms import transform


class CutFields(Struct):
    """Tiles of all images."""

    strips: StripFields
    """The strips."""
    x: ImageFields
    """The images."""
    tiles: Word
    """Address of the tiles, for each point one after the other."""
    tile_stride: Word
    """Elements from one tile to the next."""
    point_stride: Word
    """Elements from one point to the next."""


def write(k, taps):
    of = matrices(taps)
    forth = transform(k.module, "forth", of.input, k.width)
    f = CutFields.read(k)
    with each_block(k, f.strips) as block:
        first = f.tiles + block.first * f.strips.tile_columns * f.tile_stride * FLOAT
        target = Points(first, f.tile_stride * FLOAT, f.point_stride * FLOAT)
        piece = Piece(of.side, of.outputs, of.side - of.outputs)
        cut(k, f.strips, f.x, block, forth, piece, target)


@WIDTH
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("pad", [(0, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("channels", ["one block", "two blocks", "an odd number"])
def test_all_tiles_are_at_the_points(channels, pad, taps, width):
    c, block = {
        "one block": (width, width), "two blocks": (2 * width, width),
        "an odd number": (width + 3, width + 3),
    }[channels]  # fmt: skip
    shape = (2, c, 9, 11)
    x, memory = images(shape, block)
    cutting = tiling(shape, c, taps, width, pad, stack_bytes=1, fewest_tiles=1)
    scratch, (down, right) = Scratch(cutting), cutting.grid
    tiles = np.zeros((cutting.points, 2 * down * right, c), np.float32)
    kernel = exported(f"cut{taps}x{width}", width, lambda k: write(k, taps))
    fields = CutFields.values(
        strips=scratch.calls(stages=1)[0],
        x=image_values(Images.in_blocks(shape, block), shape[2:], width, pad),
        tiles=tiles,
        tile_stride=c,
        point_stride=2 * down * right * c,
    )

    own = np.zeros(scratch.size, np.float32)
    Arguments(fields).run(kernel, 1, {**scratch.addresses(own), "x.at": memory})

    of = matrices(taps)
    reach = ((0, 0), (0, 0), (0, 4 * down), (0, 4 * right))  # tiles reach over the last rows
    cuts = windows(np.pad(x, reach), (of.side, of.side), pad, (of.outputs, of.outputs))
    want = np.einsum(
        "ri,sj,ncpqij->rsnpqc", of.input, of.input, cuts[:, :, :down, :right], optimize=True
    )
    np.testing.assert_allclose(tiles, want.reshape(tiles.shape), rtol=1e-4, atol=5e-4)
