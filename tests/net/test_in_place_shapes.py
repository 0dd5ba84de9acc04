"""A layer in place keeps the shape that the writer of its bottom gave it."""

import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import NetError
from demitasse.io.proto import NetParameter, parse_text

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [2, 4, 4, 3] } } }'


def net(*layers):
    return Net(parse_text(INPUT + "".join(layers), NetParameter), device="numpy")


@pytest.mark.parametrize(
    "fields",
    [
        'type: "Im2col" convolution_param { kernel_size: 2 }',
        'type: "Convolution" convolution_param { num_output: 4 kernel_size: 2 }',
        'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }',
        'type: "Reduction" reduction_param { axis: 1 }',
        'type: "InnerProduct" inner_product_param { num_output: 5 }',
    ],
    ids=lambda fields: fields.split('"')[1],
)
def test_another_shape_in_place_is_refused_with_both(fields):
    relu = 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }'
    layer = f'layer {{ name: "l" bottom: "y" top: "y" {fields} }}'

    with expect_error(NetError, place="layer 'l'", mentions="(2, 4, 4, 3)"):
        net(relu, layer)


def test_the_same_shape_in_place_is_not_refused():
    fields = "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }"

    made = net(f'layer {{ name: "c" type: "Convolution" bottom: "x" top: "x" {fields} }}')

    assert made.blobs["x"].shape == (2, 4, 4, 3)


@pytest.mark.parametrize("kind", ["EuclideanLoss", "HingeLoss", "MultinomialLogisticLoss"])
def test_a_loss_in_the_place_of_its_bottom_is_refused(kind):
    labels = 'layer { name: "y" type: "Input" top: "y" input_param { shape { dim: 2 } } }'
    layer = f'layer {{ name: "l" type: "{kind}" bottom: "x" bottom: "y" top: "x" }}'

    with expect_error(NetError, place="layer 'l'"):
        net(labels, layer)
