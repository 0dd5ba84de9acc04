"""Parameters that a layer's own message holds: which shapes fit."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, ShapeError
from demitasse.testing import make_layer

VALUES = " ".join(f"data: {value}" for value in range(6))


def layer(blob):
    text = (
        'type: "InnerProduct" inner_product_param { num_output: 2 bias_term: false } '
        f"blobs {{ {blob} {VALUES} }}"
    )
    return make_layer(text, [np.ones((1, 3))])


@pytest.mark.parametrize(
    "blob", ["shape { dim: 2 dim: 3 }", "num: 1 channels: 1 height: 2 width: 3"]
)
def test_the_shape_and_its_old_form_with_ones_in_front_are_taken(blob):
    one = layer(blob)

    assert one.params[0].shape == (2, 3)
    np.testing.assert_array_equal(one.forward()[0], [[3, 12]])


@pytest.mark.parametrize(
    ("blob", "shape"),
    [
        ("num: 2 channels: 3 height: 1 width: 1", "(2, 3, 1, 1)"),
        ("num: 1 channels: 1 height: 3 width: 2", "(1, 1, 3, 2)"),
        ("shape { dim: 3 dim: 2 dim: 1 dim: 1 }", "(3, 2, 1, 1)"),
        ("shape { dim: 3 dim: 2 }", "(3, 2)"),
    ],
)
def test_other_shapes_of_as_many_values_are_refused(blob, shape):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, param=0, mentions=["(2, 3)", shape]):
        layer(blob)
