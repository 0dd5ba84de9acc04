"""Input transform: strips of images are padded, cut into tiles and transformed."""

import numpy as np
import pytest
from correlate import images, windows
from stages import WIDTH, exported
from tilings import KERNELS, tiling

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct
from demitasse.backends.kernels.language.values import FLOAT, Word
from demitasse.backends.kernels.winograd.blocks import ScratchLayout, StripFields, each_block
from demitasse.backends.kernels.winograd.matrices import filtering
from demitasse.backends.kernels.winograd.transforms import (
    ImageFields,
    Positions,
    cut,
    image_values,
    transform,
)


class CutFields(Struct):
    """Tiles of all images."""

    strips: StripFields
    """The strips."""
    x: ImageFields
    """The images."""
    tiles: Address
    """Address of the tiles, for each position one after the other."""
    tile_stride: Word
    """Elements from one tile to the next."""
    position_stride: Word
    """Elements from one position to the next."""


def write(k, of):
    both = of.down.input, of.across.input
    forth = transform(k.module, "forth", both, k.width)
    f = CutFields.read(k)
    with each_block(k, f.strips) as block:
        first = f.tiles + block.first * f.strips.tile_columns * f.tile_stride * FLOAT
        target = Positions(first, f.tile_stride * FLOAT, f.position_stride * FLOAT)
        cut(k, f.strips, f.x, block, forth, of.inputs, of.outputs, target)


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("pad", [(0, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("channels", ["one block", "two blocks", "an odd number"])
def test_all_tiles_are_at_the_positions(channels, pad, kernel, width):
    c, block = {
        "one block": (width, width), "two blocks": (2 * width, width),
        "an odd number": (width + 3, width + 3),
    }[channels]  # fmt: skip
    shape, of = (2, c, 9, 11), filtering(kernel)
    pad = tuple(min(zeros, taps - 1) for zeros, taps in zip(pad, kernel, strict=True))
    x, memory = images(shape, block)
    cutting = tiling(shape, c, kernel, width, pad, stack_bytes=1, fewest_tiles=1)
    scratch, (down, right) = ScratchLayout(cutting), cutting.grid
    tiles = np.zeros((cutting.positions, 2 * down * right, c), np.float32)
    code = exported(f"cut{of}x{width}", width, lambda k: write(k, of))
    fields = CutFields.values(
        strips=scratch.calls(stages=1)[0],
        x=image_values(Images.in_blocks(shape, block), shape[2:], width, cutting.pad),
        tiles=tiles,
        tile_stride=c,
        position_stride=2 * down * right * c,
    )

    own = np.zeros(scratch.size, np.float32)
    Arguments(fields).run(code, 1, {**scratch.divide(own), "x.at": memory})

    reach = ((0, 0), (0, 0), (0, 4 * down), (0, 4 * right))  # tiles reach over the last rows
    sides, steps = (of.down.side, of.across.side), (of.down.outputs, of.across.outputs)
    cuts = windows(np.pad(x, reach), sides, pad, steps)[:, :, :down, :right]
    want = np.einsum("ri,sj,ncpqij->rsnpqc", of.down.input, of.across.input, cuts, optimize=True)
    np.testing.assert_allclose(tiles, want.reshape(tiles.shape), rtol=1e-4, atol=5e-4)
