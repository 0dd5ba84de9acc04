"""Where a point of one blob lies in another: ``caffe.coord_map``."""

import numpy as np
import pytest
from expect_error import expect_error

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import layers as L  # noqa: N812
from demitasse.compat.pycaffe.coord_map import (
    AxisMismatchException,
    UndefinedMapException,
    compose,
    conv_params,
    coord_map,
    coord_map_from_to,
    crop,
    crop_params,
    inverse,
)


def net(pool=2, up=2, pad=0, up_pad=0, kernel=3):
    """A convolution, a pooling that shrinks and a deconvolution that grows."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 1, 100, 100]})
    n.conv = L.Convolution(n.data, num_output=2, kernel_size=kernel, pad=pad)
    n.pool = L.Pooling(n.conv, kernel_size=pool, stride=pool)
    n.up = L.Deconvolution(n.pool, num_output=2, kernel_size=2 * up, stride=up, pad=up_pad)
    return n


@pytest.mark.parametrize(
    ("options", "scale", "shift"),
    [
        ({}, 1, 0),
        ({"pool": 4, "up": 4}, 1, -1),
        ({"pad": 3}, 1, -3),
        ({"up_pad": 3}, 1, 3),
        ({"pad": 3, "up_pad": 3}, 1, 0),
        ({"pool": 4, "up": 2}, 2, -0.5),
        ({"kernel": [3, 5], "pad": [0, 2]}, 1, [0, -1]),
    ],
)
def test_maps_through_several_layers(options, scale, shift):
    n = net(**options)

    axis, a, b = coord_map_from_to(n.up, n.data)

    assert axis == 1
    np.testing.assert_allclose(a, np.atleast_1d(scale))
    np.testing.assert_allclose(b, np.atleast_1d(shift))


def test_the_map_tells_where_pixels_go(tmp_path):
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 1, 21, 21]})
    window = {"num_output": 1, "kernel_size": 3, "stride": 2, "pad": 1, "bias_term": False}
    n.up = L.Deconvolution(n.data, convolution_param=window)
    path = tmp_path / "net.prototxt"
    path.write_text(str(n.to_proto()))
    made = caffe.Net(str(path), caffe.TEST)
    made.params["up"][0].data[...] = np.outer([1, 2, 1], [1, 2, 1])
    made.blobs["data"].data[0, 0, 7, 4] = 1

    made.forward()

    _, scale, shift = coord_map(n.up.fn)
    brightest = np.unravel_index(made.blobs["up"].data[0, 0].argmax(), (41, 41))
    np.testing.assert_array_equal(brightest, np.array([7, 4]) * scale + shift)


def test_layers_without_windows_leave_points_where_they_are():
    n = net()
    n.relu = L.ReLU(n.up)
    n.point = L.Convolution(n.relu, num_output=1, kernel_size=1)

    assert coord_map_from_to(n.point, n.data) == coord_map_from_to(n.up, n.data)


def test_two_branches_meet_in_the_nearest_blob():
    n = net()
    n.other = L.Convolution(n.pool, num_output=2, kernel_size=3, stride=2, pad=1)

    axis, a, b = coord_map_from_to(n.other, n.up)

    assert (axis, a, b) == (1, 4, 1.5)


def test_many_branches_are_walked_once():
    top = L.Input(shape={"dim": [1, 1, 9, 9]})
    data = top
    for _ in range(60):  # 2 ** 60 ways
        top = L.Eltwise(L.ReLU(top), L.Sigmoid(top))

    assert coord_map_from_to(top, data) == (None, 1, 0)


def test_crops_shift_and_only_their_first_bottom_is_mapped():
    n = net()
    n.crop = L.Crop(n.up, n.data, axis=2, offset=5)

    assert coord_map_from_to(n.crop, n.data) == (1, 1, 5)
    assert crop_params(n.crop.fn) == (2, 5)
    assert crop_params(L.Crop(n.up, n.data).fn) == (2, 0)


def test_dilated_windows_are_wider():
    top = L.Convolution(
        L.Input(), convolution_param={"kernel_size": [3, 5], "dilation": 2, "stride": 2, "pad": 1}
    )

    axis, stride, window, pad = conv_params(top.fn)

    assert (axis, stride, pad) == (1, 2, 1)
    np.testing.assert_array_equal(window, [5, 9])


def test_maps_compose_and_invert():
    first, second = (1, 2.0, 3.0), (None, 4.0, 5.0)

    assert compose(first, second) == (1, 8, 13)
    assert compose(first, inverse(first)) == (1, 1, 0)
    with expect_error(AxisMismatchException, mentions=["axis 1", "axis 2"]):
        compose(first, (2, 1.0, 0.0))


def test_crop_makes_a_layer():
    n = net(pool=4, up=4)

    layer = crop(n.up, n.data).to_proto().layer[-1]

    assert layer.type == "Crop"
    assert (layer.crop_param.axis, list(layer.crop_param.offset)) == (2, [1])


def test_crop_without_windows_in_between_takes_the_corner():
    n = net()

    layer = crop(L.ReLU(n.data), n.data).to_proto().layer[-1]

    assert (layer.crop_param.axis, list(layer.crop_param.offset)) == (2, [0])


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ({"pool": 3}, "strides"),
        ({"up_pad": 10}, ["-", "pad"]),
        ({"pool": 3, "up": 3}, ".5"),
    ],
)
def test_crops_that_cannot_be_are_refused(options, mentions):
    n = net(**options)

    with expect_error(AssertionError, mentions=mentions):
        crop(n.up, n.data)


def test_layers_that_lose_places_end_the_walk():
    n = net()
    n.ip = L.InnerProduct(n.up, num_output=3)

    with expect_error(UndefinedMapException, mentions="InnerProduct"):
        coord_map(n.ip.fn)
    with expect_error(RuntimeError, mentions="InnerProduct"):
        coord_map_from_to(n.ip, n.data)


def test_geometry_by_sides_is_refused():
    with expect_error(AssertionError, mentions="kernel_h, kernel_w"):
        conv_params(L.Pooling(L.Input(), kernel_h=2, kernel_w=3).fn)
