"""PriorBox."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.layers.detection.prior_box import box_sizes, prior_boxes
from demitasse.testing import make_layer

MAP, IMAGE = np.zeros((2, 8, 3, 4)), np.zeros((2, 3, 60, 100))


def text(fields="min_size: 30"):
    return f'type: "PriorBox" prior_box_param {{ {fields} }}'


def boxes(one):
    """What a layer gives, as (H, W, K, 4)."""
    return one.forward()[0][0, 0].reshape(3, 4, -1, 4)


def test_boxes_and_variances(backend):
    fields = "min_size: 30 max_size: 60 aspect_ratio: 2 aspect_ratio: 3"
    one = make_layer(text(fields), [MAP, IMAGE], device=backend)
    sizes = box_sizes([30], [60], [2, 3], flip=True)

    [top] = one.forward()

    assert top.shape == (1, 2, 3 * 4 * 6 * 4)
    expected = prior_boxes((3, 4), (60, 100), (20, 25), [(0.5, 0.5)], sizes)
    np.testing.assert_allclose(boxes(one), expected, rtol=1e-6)
    np.testing.assert_allclose(top[0, 1], 0.1, rtol=1e-7)


def test_every_coordinate_has_its_variance(backend):
    fields = "min_size: 30 variance: 0.1 variance: 0.2 variance: 0.3 variance: 0.4"
    one = make_layer(text(fields), [MAP, IMAGE], device=backend)

    variances = one.forward()[0][0, 1].reshape(-1, 4)

    np.testing.assert_allclose(variances, np.tile([0.1, 0.2, 0.3, 0.4], (12, 1)), rtol=1e-6)


def test_clipping_ends_at_the_image(backend):
    one = make_layer(text("min_size: 90 clip: true"), [MAP, IMAGE], device=backend)

    found = boxes(one)

    assert found.min() == 0
    assert found.max() == 1


def test_without_clipping_boxes_may_leave_the_image(backend):
    one = make_layer(text("min_size: 90"), [MAP, IMAGE], device=backend)

    assert boxes(one).min() < 0


@pytest.mark.parametrize(
    ("fields", "image", "step", "offset"),
    [
        ("step: 16", (60, 100), (16, 16), 0.5),
        ("step_h: 10 step_w: 20", (60, 100), (10, 20), 0.5),
        ("img_size: 300", (300, 300), (100, 75), 0.5),
        ("img_h: 30 img_w: 40 offset: 0.25", (30, 40), (10, 10), 0.25),
    ],
)
def test_geometry_that_is_given(fields, image, step, offset, backend):
    one = make_layer(text(f"min_size: 30 {fields}"), [MAP, IMAGE], device=backend)

    expected = prior_boxes((3, 4), image, step, [(offset, offset)], [(30, 30)])

    np.testing.assert_allclose(boxes(one), expected, rtol=1e-6)


def test_several_centres_for_each_cell(backend):
    fields = "min_size: 30 offset_h: 0.5 offset_w: 0.5 offset_h: 1.0 offset_w: 0.25"
    one = make_layer(text(fields), [MAP, IMAGE], device=backend)

    expected = prior_boxes((3, 4), (60, 100), (20, 25), [(0.5, 0.5), (1, 0.25)], [(30, 30)])

    np.testing.assert_allclose(boxes(one), expected, rtol=1e-6)


def test_another_size_of_the_bottoms(backend):
    one = make_layer(text(), [MAP, IMAGE], device=backend)
    one.forward()

    [top] = one.forward(MAP[:, :, :1, :1], IMAGE)

    np.testing.assert_allclose(top[0, 0], [0.35, 0.25, 0.65, 0.75], rtol=1e-6)


def test_gradients_are_0(backend):
    one = make_layer(text(), [MAP, IMAGE], device=backend)
    one.forward()

    assert all((diff == 0).all() for diff in one.backward(1.0))


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ("", ErrorCode.MISSING, "prior_box_param.min_size"),
        ("min_size: 0", ErrorCode.OUT_OF_RANGE, "prior_box_param.min_size"),
        (
            "min_size: 1 min_size: 2 max_size: 3",
            ErrorCode.COUNT_MISMATCH,
            "prior_box_param.max_size",
        ),
        ("min_size: 3 max_size: 3", ErrorCode.OUT_OF_RANGE, "prior_box_param.max_size"),
        (
            "min_size: 1 variance: 0.1 variance: 0.1",
            ErrorCode.COUNT_MISMATCH,
            "prior_box_param.variance",
        ),
        ("min_size: 1 variance: 0", ErrorCode.OUT_OF_RANGE, "prior_box_param.variance"),
        ("min_size: 1 aspect_ratio: 0", ErrorCode.OUT_OF_RANGE, "prior_box_param.aspect_ratio"),
        ("min_size: 1 img_size: 3 img_h: 3", ErrorCode.CONFLICT, "prior_box_param.img_size"),
        ("min_size: 1 step: 3 step_w: 3", ErrorCode.CONFLICT, "prior_box_param.step"),
        ("min_size: 1 step_w: 3", ErrorCode.MISSING, "prior_box_param.step_h"),
        ("min_size: 1 step: -1", ErrorCode.OUT_OF_RANGE, "prior_box_param.step"),
        (
            "min_size: 1 offset: 0.5 offset_h: 1 offset_w: 1",
            ErrorCode.CONFLICT,
            "prior_box_param.offset",
        ),
        ("min_size: 1 offset_h: 1", ErrorCode.CONFLICT, "prior_box_param.offset"),
    ],
)
def test_refused(fields, code, field):
    with expect_error(ConfigError, code, field=field):
        make_layer(text(fields), [MAP, IMAGE])


@pytest.mark.parametrize(
    ("shape", "mentions"), [((2, 3, 4), "(N, C, H, W)"), ((1, 2, 0, 3), "PriorBox")]
)
def test_bottoms_that_are_no_maps_are_refused(shape, mentions):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=mentions):
        make_layer(text(), [np.zeros(shape), IMAGE])
