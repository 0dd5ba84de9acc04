"""Layers that only move elements: Concat, Slice, Flatten, Reshape, Crop, Tile."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import check_gradients, make_layer

RNG = np.random.default_rng(0)


def sized(*shape):
    return RNG.standard_normal(shape)


def make(kind, param, fields, *bottoms, tops=1, **options):
    names = " ".join(f'top: "y{i}"' for i in range(tops))
    return make_layer(f'type: "{kind}" {names} {param} {{ {fields} }}', bottoms, **options)


def concat(fields, *bottoms, **options):
    return make("Concat", "concat_param", fields, *bottoms, **options)


def cut(fields, x, tops, **options):
    return make("Slice", "slice_param", fields, x, tops=tops, **options)


def flatten(fields, x, **options):
    return make("Flatten", "flatten_param", fields, x, **options)


def reshape(fields, x, **options):
    return make("Reshape", "reshape_param", fields, x, **options)


def crop(fields, x, like, **options):
    return make("Crop", "crop_param", fields, x, like, **options)


def tile(fields, x, **options):
    return make("Tile", "tile_param", fields, x, **options)


# -- Concat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "axis"),
    [("", 1), ("axis: 0", 0), ("axis: -1", 2), ("concat_dim: 2", 2), ("concat_dim: 0", 0)],
)
def test_concat_joins_along_an_axis(fields, axis, backend):
    shapes = [[2, 3, 4] for _ in range(3)]
    for shape, size in zip(shapes, (1, 5, 2), strict=True):
        shape[axis] = size
    bottoms = [sized(*shape) for shape in shapes]

    [y] = concat(fields, *bottoms, device=backend).forward()

    np.testing.assert_array_equal(y, np.concatenate(bottoms, axis=axis))
    expect_gradients(f'type: "Concat" concat_param {{ {fields} }}', *bottoms, device=backend)


def test_concat_of_one_bottom_shares_it(backend):
    one = concat("", sized(2, 3), device=backend)

    one.forward()
    one.backward()

    assert one.top[0].data_memory is one.bottom[0].data_memory
    assert one.top[0].diff_memory is one.bottom[0].diff_memory


def test_concat_leaves_gradients_alone_that_are_not_wanted(backend):
    one = concat("axis: 0", sized(1, 2), sized(2, 2), device=backend)
    one.forward()
    one.bottom[0].diff = 9

    below = one.backward(np.arange(6.0).reshape(3, 2), propagate_down=[False, True])

    np.testing.assert_array_equal(below[1], [[2, 3], [4, 5]])
    np.testing.assert_array_equal(one.bottom[0].diff, [[9, 9]])


@pytest.mark.parametrize(
    ("fields", "shapes", "error", "code", "mentions"),
    [
        ("axis: 1 concat_dim: 1", [(2, 3)], ConfigError, ErrorCode.CONFLICT, "concat_dim"),
        ("axis: 2", [(2, 3)], ShapeError, None, "axis 2"),
        ("concat_dim: 2", [(2, 3)], ShapeError, ErrorCode.OUT_OF_RANGE, ["concat_dim", "2"]),
        ("concat_dim: 4294967295", [(2, 3)], ShapeError, ErrorCode.OUT_OF_RANGE, "concat_dim"),
        ("", [(2, 3), (3, 3)], ShapeError, ErrorCode.SHAPE_MISMATCH, "axis 1"),
        ("", [(2, 3), (2, 3, 1)], ShapeError, ErrorCode.SHAPE_MISMATCH, "axis 1"),
    ],
)
def test_concat_refusals(fields, shapes, error, code, mentions):
    with expect_error(error, code, mentions=mentions):
        concat(fields, *(sized(*shape) for shape in shapes))


# -- Slice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "axis", "points", "tops"),
    [
        ("", 1, [2, 4], 3),
        ("axis: 0", 0, [2], 2),
        ("axis: -1 slice_point: 1 slice_point: 4", 2, [1, 4], 3),
        ("slice_dim: 2 slice_point: 3", 2, [3], 2),
    ],
)
def test_slice_cuts_along_an_axis(fields, axis, points, tops, backend):
    x = sized(4, 6, 5)
    one = cut(fields, x, tops, device=backend)

    parts = one.forward()

    for part, want in zip(parts, np.split(x, points, axis=axis), strict=True):
        np.testing.assert_array_equal(part, want)
    check_gradients(one)


def test_slice_into_one_shares_the_bottom(backend):
    one = cut("", sized(2, 3), 1, device=backend)

    one.forward()
    one.backward()

    assert one.top[0].data_memory is one.bottom[0].data_memory
    assert one.top[0].diff_memory is one.bottom[0].diff_memory


@pytest.mark.parametrize(
    ("fields", "tops", "error", "code", "mentions"),
    [
        ("axis: 1 slice_dim: 1", 2, ConfigError, ErrorCode.CONFLICT, "slice_dim"),
        ("axis: 3", 2, ShapeError, None, "axis 3"),
        ("slice_dim: 3", 2, ShapeError, ErrorCode.OUT_OF_RANGE, ["slice_dim", "3"]),
        ("", 4, ShapeError, ErrorCode.SHAPE_MISMATCH, ["6", "1", "4"]),
        (
            "slice_point: 2",
            3,
            ConfigError,
            ErrorCode.COUNT_MISMATCH,
            ["slice_param.slice_point", "1", "2"],
        ),
        (
            "slice_point: 0",
            2,
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            ["slice_param.slice_point", "0"],
        ),
        (
            "slice_point: 4 slice_point: 4",
            3,
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            "slice_param.slice_point",
        ),
        ("slice_point: 6", 2, ShapeError, ErrorCode.OUT_OF_RANGE, "slice_point"),
        ("slice_point: 7", 2, ShapeError, ErrorCode.OUT_OF_RANGE, "slice_point"),
    ],
)
def test_slice_refusals(fields, tops, error, code, mentions):
    with expect_error(error, code, mentions=mentions):
        cut(fields, sized(4, 6, 5), tops)


# -- Flatten and Reshape --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("", (2, 60)),
        ("axis: 2", (2, 3, 20)),
        ("end_axis: -2", (2, 12, 5)),
        ("axis: 0 end_axis: 1", (6, 4, 5)),
        ("axis: -3 end_axis: -2", (2, 12, 5)),
        ("axis: 2 end_axis: 1", (2, 3, 1, 4, 5)),
    ],
)
def test_flatten_joins_axes(fields, shape, backend):
    x = sized(2, 3, 4, 5)
    one = flatten(fields, x, device=backend)

    [y] = one.forward()

    np.testing.assert_array_equal(y, x.reshape(shape))
    assert one.top[0].data_memory is one.bottom[0].data_memory


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("dim: 6 dim: 20", (6, 20)),
        ("dim: 0 dim: -1", (2, 60)),
        ("dim: 0 dim: 0 dim: 20", (2, 3, 20)),
        ("dim: -1", (120,)),
        ("dim: -1 dim: 0 dim: 2 dim: 5", (4, 3, 2, 5)),
    ],
)
def test_reshape_replaces_all_axes(fields, shape, backend):
    x = sized(2, 3, 4, 5)

    [y] = reshape(f"shape {{ {fields} }}", x, device=backend).forward()

    np.testing.assert_array_equal(y, x.reshape(shape))


@pytest.mark.parametrize(
    ("fields", "dims", "shape"),
    [
        ("axis: 1", [4, -1], (2, 4, 15)),
        ("axis: 1 num_axes: 2", [12], (2, 12, 5)),
        ("axis: -2 num_axes: 1", [5, 1], (2, 3, 4, 5, 1)),
        ("axis: -1", [1, 1], (2, 3, 4, 5, 1, 1)),
        ("axis: 2 num_axes: 0", [1], (2, 3, 1, 4, 5)),
        ("num_axes: 0", [1], (1, 2, 3, 4, 5)),
        ("axis: 1 num_axes: 2", [0, -1], (2, 3, 4, 5)),
        ("axis: 4", [], (2, 3, 4, 5)),
    ],
)
def test_reshape_replaces_some_axes(fields, dims, shape, backend):
    x = sized(2, 3, 4, 5)
    text = f"{fields} shape {{ {' '.join(f'dim: {n}' for n in dims)} }}"

    [y] = reshape(text, x, device=backend).forward()

    np.testing.assert_array_equal(y, x.reshape(shape))


def test_views_share_their_gradient_and_follow_their_bottom(backend):
    one = reshape("shape { dim: 0 dim: -1 }", sized(2, 3, 4), device=backend)

    for shape in [(2, 3, 4), (5, 2, 2), (1, 1, 1)]:
        x = sized(*shape)
        [y] = one.forward(x)
        [dx] = one.backward(2 * y)

        np.testing.assert_array_equal(y, x.reshape(shape[0], -1))
        np.testing.assert_array_equal(dx, 2 * x)


@pytest.mark.parametrize("kind", ["Flatten", "Reshape", "Tile"])
def test_views_cannot_run_in_place(kind):
    with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
        make_layer(f'type: "{kind}" bottom: "x" top: "x" tile_param {{ tiles: 2 }}', [sized(2, 3)])


@pytest.mark.parametrize(
    ("fields", "mentions"),
    [("axis: 4", "axis 4"), ("end_axis: -5", "axis -5"), ("axis: 3 end_axis: 1", "[3")],
)
def test_flatten_refusals(fields, mentions):
    with expect_error(ShapeError, mentions=mentions):
        flatten(fields, sized(2, 3, 4, 5))


@pytest.mark.parametrize(
    ("fields", "error", "code", "field"),
    [
        ("shape { dim: -1 dim: -1 }", ConfigError, ErrorCode.OUT_OF_RANGE, "reshape_param.shape"),
        ("shape { dim: -2 }", ConfigError, ErrorCode.OUT_OF_RANGE, "reshape_param.shape"),
        ("axis: 3 shape { dim: 1 }", ShapeError, ErrorCode.OUT_OF_RANGE, "reshape_param.axis"),
        ("axis: -4 shape { dim: 1 }", ShapeError, ErrorCode.OUT_OF_RANGE, "reshape_param.axis"),
        (
            "num_axes: 3 shape { dim: 1 }",
            ShapeError,
            ErrorCode.OUT_OF_RANGE,
            "reshape_param.num_axes",
        ),
        (
            "num_axes: -2 shape { dim: 1 }",
            ShapeError,
            ErrorCode.OUT_OF_RANGE,
            "reshape_param.num_axes",
        ),
        (
            "shape { dim: 6 dim: 1 dim: 0 }",
            ShapeError,
            ErrorCode.SHAPE_MISMATCH,
            "reshape_param.shape",
        ),
        ("shape { dim: 4 dim: -1 }", ShapeError, ErrorCode.SHAPE_MISMATCH, "reshape_param.shape"),
        ("shape { dim: 5 }", ShapeError, ErrorCode.SHAPE_MISMATCH, "reshape_param.shape"),
        (
            f"shape {{ {'dim: 4611686018427387904 ' * 999} }}",
            ShapeError,
            ErrorCode.LIMIT,
            "reshape_param.shape",
        ),
    ],
)
def test_reshape_refusals(fields, error, code, field):
    with expect_error(error, code, field=field):
        reshape(fields, sized(2, 3))


# -- Crop and Tile --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "index"),
    [
        ("", np.s_[:, :, :2, :3]),
        ("offset: 1", np.s_[:, :, 1:3, 1:4]),
        ("offset: 2 offset: 1", np.s_[:, :, 2:4, 1:4]),
        ("axis: 1 offset: 0 offset: 1 offset: 2", np.s_[:, :2, 1:3, 2:5]),
        ("axis: -1 offset: 2", np.s_[:, :, :, 2:5]),
        ("axis: 0", np.s_[:1, :2, :2, :3]),
    ],
)
def test_crop_keeps_the_size_of_the_second_bottom(fields, index, backend):
    x, like = sized(2, 3, 4, 5), sized(1, 2, 2, 3)

    [y] = crop(fields, x, like, device=backend).forward()

    np.testing.assert_array_equal(y, x[index])
    expect_gradients(f'type: "Crop" crop_param {{ {fields} }}', x, like, device=backend)


@pytest.mark.parametrize(
    ("fields", "like", "error", "code", "mentions"),
    [
        ("axis: 4", (1, 2, 2, 3), ShapeError, None, "axis 4"),
        (
            "offset: 1 offset: 1 offset: 1",
            (1, 2, 2, 3),
            ConfigError,
            ErrorCode.COUNT_MISMATCH,
            ["crop_param.offset", "2"],
        ),
        (
            "axis: 1 offset: 1 offset: 1",
            (1, 2, 2, 3),
            ConfigError,
            ErrorCode.COUNT_MISMATCH,
            ["crop_param.offset", "3", "1"],
        ),
        ("offset: 3", (1, 2, 2, 3), ShapeError, ErrorCode.OUT_OF_RANGE, ["2", "3", "5"]),
        ("", (1, 2, 5, 3), ShapeError, ErrorCode.OUT_OF_RANGE, "axis 2"),
        ("", (1, 2, 2), ShapeError, ErrorCode.SHAPE_MISMATCH, "Crop"),
    ],
)
def test_crop_refusals(fields, like, error, code, mentions):
    with expect_error(error, code, mentions=mentions):
        crop(fields, sized(2, 3, 4, 5), sized(*like))


def test_crop_refuses_later_bottoms_with_more_axes_than_offsets(backend):
    text = """
layer { name: "x" type: "Input" top: "x" top: "like"
  input_param { shape { dim: 2 dim: 3 dim: 5 dim: 5 } shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
layer { name: "cut" type: "Crop" bottom: "x" bottom: "like" top: "y"
  crop_param { offset: 1 offset: 0 } }"""
    net = Net(text, "TEST", device=backend)
    net.blobs["x"].reshape(2, 3, 5, 5, 5)
    net.blobs["like"].reshape(2, 3, 4, 4, 4)

    with expect_error(ConfigError, ErrorCode.COUNT_MISMATCH, mentions="crop_param.offset"):
        net.forward()


@pytest.mark.parametrize(("fields", "axis"), [("", 1), ("axis: 0", 0), ("axis: -1", 2)])
def test_tile_repeats_along_an_axis(fields, axis, backend):
    x, copies = sized(2, 3, 4), [1, 1, 1]
    copies[axis] = 3

    [y] = tile(f"{fields} tiles: 3", x, device=backend).forward()

    np.testing.assert_array_equal(y, np.tile(x, copies))
    expect_gradients(f'type: "Tile" tile_param {{ {fields} tiles: 3 }}', x, device=backend)


@pytest.mark.parametrize(
    ("fields", "error", "code", "mentions"),
    [
        ("", ConfigError, ErrorCode.OUT_OF_RANGE, "tile_param.tiles"),
        ("tiles: 0", ConfigError, ErrorCode.OUT_OF_RANGE, "tile_param.tiles"),
        ("tiles: -1", ConfigError, ErrorCode.OUT_OF_RANGE, "tile_param.tiles"),
        ("tiles: 2 axis: 3", ShapeError, None, "axis 3"),
    ],
)
def test_tile_refusals(fields, error, code, mentions):
    with expect_error(error, code, mentions=mentions):
        tile(fields, sized(2, 3, 4))
