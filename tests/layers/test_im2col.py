"""Im2col and SPP."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)


def im2col(fields, x, **options):
    return make_layer(f'type: "Im2col" convolution_param {{ {fields} }}', [x], **options)


def test_im2col_lays_the_taps_of_each_channel_side_by_side(backend):
    x = np.arange(24.0).reshape(1, 2, 3, 4)

    [y] = im2col("kernel_size: 2", x, device=backend).forward()

    assert y.shape == (1, 8, 2, 3)
    np.testing.assert_array_equal(y[0, 0], x[0, 0, :2, :3])
    np.testing.assert_array_equal(y[0, 1], x[0, 0, :2, 1:])
    np.testing.assert_array_equal(y[0, 2], x[0, 0, 1:, :3])
    np.testing.assert_array_equal(y[0, 7], x[0, 1, 1:, 1:])


@pytest.mark.parametrize(
    ("fields", "shape", "top"),
    [
        ("kernel_size: 3 stride: 2 pad: 1", (2, 2, 5, 4), (2, 18, 3, 2)),
        ("kernel_h: 2 kernel_w: 1 dilation: 2", (2, 2, 5, 4), (2, 4, 3, 4)),
        ("kernel_size: 2 axis: 2", (2, 3, 2, 4), (2, 3, 4, 3)),
        ("kernel_size: 1", (2, 3, 4), (2, 3, 4)),
        ("kernel_size: 2 force_nd_im2col: true", (1, 2, 3, 3, 3), (1, 16, 2, 2, 2)),
    ],
)
def test_im2col_gradients(fields, shape, top, backend):
    x = RNG.standard_normal(shape)

    assert im2col(fields, x).top[0].shape == top
    expect_gradients(f'type: "Im2col" convolution_param {{ {fields} }}', x, device=backend)


def test_im2col_refuses_a_bottom_without_spatial_axes():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["Im2col", "axis 1"]):
        im2col("kernel_size: 1", np.zeros((2, 3)))


def test_im2col_refuses_another_number_of_axes_later():
    one = im2col("kernel_size: 1", np.zeros((2, 3, 4, 4)))

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="Im2col"):
        one.forward(np.zeros((2, 3, 4)))


def spp(fields, x, **options):
    return make_layer(f'type: "SPP" spp_param {{ {fields} }}', [x], **options)


@pytest.mark.parametrize(("method", "reduce"), [("MAX", np.max), ("AVE", np.mean)])
def test_spp_joins_ever_finer_grids(method, reduce, backend):
    x = RNG.standard_normal((2, 3, 8, 12))

    [y] = spp(f"pyramid_height: 3 pool: {method}", x, device=backend).forward()

    levels = [
        reduce(x.reshape(2, 3, bins, 8 // bins, bins, 12 // bins), axis=(3, 5)).reshape(2, -1)
        for bins in (1, 2, 4)
    ]
    np.testing.assert_allclose(y, np.concatenate(levels, axis=1))


def test_spp_of_height_one_is_global_pooling_with_its_axes(backend):
    x = RNG.standard_normal((2, 3, 5, 4))

    [y] = spp("pyramid_height: 1", x, device=backend).forward()

    np.testing.assert_allclose(y, x.max(axis=(2, 3), keepdims=True))


def test_spp_follows_the_size_of_its_bottom(backend):
    one = spp("pyramid_height: 2", RNG.standard_normal((1, 2, 4, 4)), device=backend)

    for shape in [(3, 2, 6, 8), (1, 2, 4, 4), (2, 2, 4, 4)]:
        x = RNG.standard_normal(shape)
        [y] = one.forward(x)

        assert y.shape == (shape[0], 10)
        np.testing.assert_allclose(y[:, :2], x.max(axis=(2, 3)))


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("height", [1, 3])
def test_spp_gradients(method, height, backend):
    x = RNG.permutation(2 * 8 * 7).reshape(1, 2, 8, 7) * 0.1

    expect_gradients(
        f'type: "SPP" spp_param {{ pyramid_height: {height} pool: {method} }}', x, device=backend
    )


def test_spp_can_be_stochastic_where_the_bins_fit(backend):
    x = RNG.uniform(1, 2, (2, 3, 4, 4))
    one = spp("pyramid_height: 2 pool: STOCHASTIC", x, device=backend)

    [y] = one.forward()
    [dx] = one.backward(np.ones_like(y))

    assert np.isin(y, x).all()
    assert dx.sum() == pytest.approx(y.size)


@pytest.mark.parametrize(
    ("fields", "size", "error", "code", "mentions"),
    [
        ("", (4, 4), ConfigError, ErrorCode.OUT_OF_RANGE, ["spp_param.pyramid_height", "0"]),
        ("pyramid_height: 3", (5, 5), ConfigError, ErrorCode.OUT_OF_RANGE, "pooling_param.pad"),
        (
            "pyramid_height: 2 pool: STOCHASTIC",
            (5, 4),
            ConfigError,
            ErrorCode.CONFLICT,
            "STOCHASTIC",
        ),
        ("pyramid_height: 2", (0, 4), ShapeError, ErrorCode.SHAPE_MISMATCH, "0"),
        ("pyramid_height: 2", (4,), ShapeError, ErrorCode.SHAPE_MISMATCH, "SPP"),
    ],
)
def test_spp_refusals(fields, size, error, code, mentions):
    with expect_error(error, code, mentions=mentions):
        spp(fields, np.zeros((1, 2, *size)))
