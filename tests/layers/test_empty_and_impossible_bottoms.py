"""Bottoms without values along an axis, and detections of images that there cannot be."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, NetError, ShapeError
from demitasse.testing.single_layer import make_layer


def test_the_softmax_of_nothing_is_nothing(backend):
    layer = make_layer('type: "Softmax"', [np.zeros((3, 0))], device=backend, dtype="float32")

    [top] = layer.forward()
    [diff] = layer.backward(np.zeros((3, 0)))

    assert top.shape == diff.shape == (3, 0)


def test_a_loss_of_no_triplets_is_nothing(backend):
    bottoms = [np.zeros((0, 3, 2))] * 3
    layer = make_layer('type: "TripletLoss"', bottoms, device=backend, dtype="float32")

    layer.forward()

    assert [diff.shape for diff in layer.backward()] == [(0, 3, 2)] * 3


@pytest.mark.parametrize("shape", [(0, 4, 2, 2), (2, 0, 2, 2), (2, 4, 0, 3), (0, 0, 0, 0)])
def test_channels_of_nothing_are_shuffled(shape, backend):
    text = 'type: "ShuffleChannel" shuffle_channel_param { group: 2 }'
    layer = make_layer(text, [np.zeros(shape)], device=backend, dtype="float32")

    [top] = layer.forward()
    [diff] = layer.backward(np.zeros(shape))

    assert top.shape == diff.shape == shape


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution", "ConvolutionDepthwise"])
def test_a_convolution_of_no_channels_is_refused(kind, backend):
    text = f'type: "{kind}" convolution_param {{ num_output: 2 kernel_size: 1 }}'

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(1, 0, 2, 2)"):
        make_layer(text, [np.zeros((1, 0, 2, 2))], device=backend)


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "MultinomialLogisticLoss"])
def test_labels_of_no_classes_are_refused(kind):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, axis=1, got=0):
        make_layer(f'type: "{kind}"', [np.zeros((3, 0)), np.zeros(3)])


def test_statistics_of_nothing_are_refused(backend):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(2, 4, 0, 3)"):
        make_layer('type: "BatchNorm"', [np.zeros((2, 4, 0, 3))], device=backend)


def test_regions_without_channels_are_pooled(backend):
    text = 'type: "ROIPooling" roi_pooling_param { pooled_h: 2 pooled_w: 2 }'
    regions = np.array([[0, 0, 0, 3, 3]], float)
    layer = make_layer(text, [np.zeros((1, 0, 4, 4)), regions], device=backend, dtype="float32")

    [top] = layer.forward()
    [diff, *_] = layer.backward(np.zeros(top.shape))

    assert top.shape == (1, 0, 2, 2)
    assert diff.shape == (1, 0, 4, 4)


def test_nothing_is_put_back_where_pooling_took_nothing_from(backend):
    shape = (1, 0, 2, 2)
    text = 'type: "Upsample" upsample_param { scale: 2 }'
    layer = make_layer(text, [np.zeros(shape)] * 2, device=backend, dtype="float32")

    [top] = layer.forward()
    [diff, *_] = layer.backward(np.zeros(top.shape))

    assert top.shape == (1, 0, 4, 4)
    assert diff.shape == shape


@pytest.mark.parametrize("image", [np.inf, 1e30, np.nan, -3])
def test_a_detection_in_an_image_that_cannot_be_is_refused(image):
    detection = [[[[image, 1, 0.5, 0, 0, 1, 1]]]]
    truth = [[[[0, 1, 0, 0, 0, 1, 1, 0]]]]
    layer = make_layer(
        'type: "DetectionEvaluate" detection_evaluate_param { num_classes: 3 }', [detection, truth]
    )

    with expect_error(NetError, mentions=f"image {image:g}"):
        layer.forward()


@pytest.mark.parametrize("image", [np.inf, np.nan, -3])
def test_an_object_in_an_image_that_cannot_be_is_refused(image):
    detection = [[[[0, 1, 0.5, 0, 0, 1, 1]]]]
    truth = [[[[image, 1, 0, 0, 0, 1, 1, 0]]]]
    layer = make_layer(
        'type: "DetectionEvaluate" detection_evaluate_param { num_classes: 3 }', [detection, truth]
    )

    with expect_error(NetError, mentions="in image"):
        layer.forward()
