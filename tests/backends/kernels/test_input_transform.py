"""Input transform: strips of images are padded, cut into tiles and transformed."""

from dataclasses import replace

import numpy as np
import pytest
from correlate import images, windows
from stages import WIDTH, exported
from tilings import KERNELS, tiling

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.structs import Struct
from demitasse.backends.kernels.winograd.blocks import BlockedKernel, BlockFields, each_block
from demitasse.backends.kernels.winograd.matrices import filtering
from demitasse.backends.kernels.winograd.transforms import TiledFields, input_transform


class CutFields(Struct):
    """Tiles of all images."""

    blocks: BlockFields
    """The blocks."""
    x: TiledFields
    """The images."""


def write(k, of):
    f = CutFields.read(k)
    matrices = of.down.input, of.across.input
    with each_block(k, f.blocks) as block:
        input_transform(k, block, f.x, matrices, of.outputs, f.blocks.tiles)


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("pad", [(0, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("channels", ["one vector", "two vectors", "an odd number"])
def test_all_tiles_are_at_the_positions(channels, pad, kernel, width):
    c = {"one vector": width, "two vectors": 2 * width, "an odd number": width + 3}[channels]
    shape, of = (2, c, 9, 11), filtering(kernel, (9, 11), whole=True)
    pad = tuple(min(zeros, taps - 1) for zeros, taps in zip(pad, kernel, strict=True))
    x, memory = images(shape)
    cutting = replace(tiling(shape, c, kernel, width, pad), filtering=of)
    (down, right), stride = cutting.grid, cutting.tile_position_stride
    code = exported(f"cut{of}x{width}", width, lambda k: write(k, of))
    fields = TiledFields.tiled(Images.channels_last(shape), cutting)
    kernel = BlockedKernel(cutting, code, CutFields, 1, x=fields)

    scratch = np.zeros(kernel.scratch_size, np.float32)
    kernel.run(scratch, {"x.at": memory})

    assert (cutting.chunks, cutting.blocks) == (1, 1)
    start = kernel.stacks_start
    stack = scratch[start : start + cutting.positions * stride].reshape(-1, stride)
    tiles = stack[:, : 2 * down * right * c].reshape(-1, 2 * down * right, c)
    reach = ((0, 0), (0, 0), (0, 4 * down), (0, 4 * right))  # tiles reach over the last rows
    sides, steps = (of.down.side, of.across.side), (of.down.outputs, of.across.outputs)
    cuts = windows(np.pad(x, reach), sides, pad, steps)[:, :, :down, :right]
    want = np.einsum("ri,sj,ncpqij->rsnpqc", of.down.input, of.across.input, cuts, optimize=True)
    np.testing.assert_allclose(tiles, want.reshape(tiles.shape), rtol=1e-4, atol=5e-4)
