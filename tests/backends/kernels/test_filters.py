"""Filter transform, and its transpose for the gradient."""

import numpy as np
import pytest
from stages import WIDTH, normal
from tilings import KERNELS, tiling

from demitasse.backends.kernels.winograd.filters import filter_gradient, filter_transform


def unpacked(positions, of):
    """The filters of a stack of panels. Shape: (positions, groups, inputs, outputs)."""
    inputs, outputs = of.channels // of.groups, of.filters // of.groups
    by_position = positions.reshape(of.positions, of.filter_position_stride)
    found = np.empty((of.positions, of.groups, inputs, outputs), positions.dtype)
    for group, first, vectors, start in of.panels:
        columns = vectors * of.width
        part = by_position[:, start : start + inputs * columns].reshape(-1, inputs, columns)
        found[:, group, :, first : first + columns] = part[..., : outputs - first]
    return found


SIZES = pytest.mark.parametrize(("c", "m", "group"), [(16, 16, 1), (20, 50, 1), (32, 48, 2)])


@WIDTH
@SIZES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_filters_are_transformed_from_both_sides(kernel, c, m, group, threads, width):
    of = tiling((1, c, 8, 8), m, kernel, width, group=group, threads=threads)
    weights, transform = normal(m, c // group, *kernel), filter_transform(of)
    positions = np.full(of.filter_size, np.nan, np.float32)

    transform(positions, weights)

    down, across = (each.filter for each in of.filtering)
    parts = weights.reshape(group, -1, *weights.shape[1:])
    want = np.einsum("ri,sj,gmcij->rsgcm", down, across, parts, optimize=True)
    got = unpacked(positions, of)
    np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-4, atol=1e-5)


@WIDTH
@SIZES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_filters_of_the_gradient_are_turned_round(kernel, c, m, group, width):
    of = tiling((1, c, 8, 8), m, kernel, width, group=group).backward
    weights, transform = normal(m, c // group, *kernel), filter_transform(of)
    positions = np.full(of.filter_size, np.nan, np.float32)

    transform(positions, weights)

    down, across = (each.filter for each in of.filtering)
    flipped = weights[..., ::-1, ::-1].reshape(group, -1, *weights.shape[1:])
    want = np.einsum("ri,sj,gmcij->rsgmc", down, across, flipped, optimize=True)
    got = unpacked(positions, of)
    np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-4, atol=1e-5)


@WIDTH
@SIZES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_chunks_are_summed_and_taken_back(kernel, c, m, group, width):
    of = tiling((3, c, 8, 8), m, kernel, width, group=group, threads=3).filter_gradient
    positions, weights = normal(of.chunks, of.filter_size), np.zeros((m, c // group, *kernel), "f")

    filter_gradient(of)(positions, weights)

    down, across = (each.filter.astype(float) for each in of.filtering)
    total = unpacked(positions.sum(axis=0), of)
    assert of.chunks == 3
    total = total.reshape(len(down), len(across), *total.shape[1:])
    want = np.einsum("ri,sj,rsgcm->gmcij", down, across, total, optimize=True)
    np.testing.assert_allclose(weights, want.reshape(weights.shape), rtol=1e-4, atol=2e-4)
