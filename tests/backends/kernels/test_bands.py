"""Bands of rows: copied with zeros around them, divided among chunks."""

import numpy as np
import pytest
from bandings import banding
from stages import WIDTH, exported, images_of, normal

from demitasse.backends.kernels.few_inputs import BandFields, band_values, each_band
from demitasse.backends.kernels.language.structs import Arguments
from demitasse.backends.kernels.language.values import FLOAT


def write(k):
    """Write that bands are copied, and that 1 is added to the first pixel of each row."""
    f = BandFields.read(k)
    with each_band(k, f, ones=True) as band, k.loop(band.rows) as row:
        place = band.output + row.i * f.y.row_stride * FLOAT
        k.store(k.load(place) + k.constant(1.0), place)


def run(width, **options):
    """The banding, the images, the chunks' copies and what was written to the outputs."""
    of = banding((2, 3, 9, 10), width, width, **options)
    x, out = normal(*of.x), np.zeros((2, *of.y[2:], width), np.float32)
    scratch = np.full((of.chunks, of.copy_size), np.nan, np.float32)
    target = images_of(out.transpose(0, 3, 1, 2))
    values = BandFields.values(**band_values(of, target, of.tap_table, 0), filters=out)

    each = {"x.at": x, "y.at": out, "scratch": scratch}
    Arguments(values).run(exported(f"copied bands{width}", width, write), 1, each)

    return of, x, scratch, out


@WIDTH
@pytest.mark.parametrize("pad", [(0, 0), (2, 1), (1, 3)])
def test_the_last_image_is_copied_with_zeros_and_a_plane_of_ones(pad, width):
    of, x, scratch, _ = run(width, pad=pad)

    assert of.bands_per_image == of.chunks == 1
    rows, columns = of.copied_rows, of.copied_columns
    copy = scratch[0, : 4 * rows * columns].reshape(4, rows, columns)
    want = np.pad(x[1], ((0, 0), (pad[0],) * 2, (pad[1],) * 2))[:, :rows, :columns]
    assert np.array_equal(copy[:3], want)
    assert np.array_equal(copy[3], np.ones((rows, columns)))


@WIDTH
@pytest.mark.parametrize("size", [1, 600])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_row_belongs_to_one_band(size, threads, width):
    _, _, _, out = run(width, copy_bytes=size, threads=threads, stride=(2, 1))

    assert (out[:, :, 0] == 1).all()
    assert not out[:, :, 1:].any()
