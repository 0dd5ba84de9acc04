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


@pytest.mark.parametrize("across", ["true", "false"])
def test_a_batch_of_no_images_is_normalised_without_a_warning(across, backend):
    text = f'type: "MVN" mvn_param {{ across_channels: {across} }}'
    layer = make_layer(text, [np.zeros((0, 3, 2, 2))], device=backend, dtype="float32")

    [top] = layer.forward()
    [diff] = layer.backward(np.zeros(top.shape))

    assert top.shape == diff.shape == (0, 3, 2, 2)


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


PRIORS = np.tile([0.0, 0.0, 1.0, 1.0], 8).reshape(1, 2, 16)

NO_IMAGES = {
    'type: "Proposal" proposal_param { feat_stride: 16 base_size: 16 }': (
        [np.zeros((0, 18, 3, 3)), np.zeros((0, 36, 3, 3)), np.zeros((0, 3))],
        [(0, 5)],
    ),
    'type: "DetectionOutput" detection_output_param { num_classes: 2 }': (
        [np.zeros((0, 16)), np.zeros((0, 8)), PRIORS],
        [(1, 1, 0, 7)],
    ),
    """type: "YoloDetectionOutput" yolo_detection_output_param { num_classes: 4 num_box: 2
        biases: [1, 1, 2, 2] }""": ([np.zeros((0, 18, 3, 3))], [(1, 1, 0, 7)]),
    """type: "BoxGroupOutput" box_group_output_param {
        box_group_param { field_h: 10 field_w: 10 stride: 8 } }""": (
        [np.zeros((0, 2, 3, 3)), np.zeros((0, 4, 3, 3))],
        [(1, 5, 1, 1)],
    ),
    """type: "BoxAnnotatorOHEM" top: "labels" top: "weights"
        box_annotator_ohem_param { roi_per_img: 2 }""": (
        [np.zeros((0, 5)), np.zeros((0, 1)), np.zeros((0, 1)), np.zeros((0, 4))],
        [(0, 1), (0, 4)],
    ),
}


@pytest.mark.parametrize("text", NO_IMAGES)
def test_a_batch_of_no_images_has_no_detections(text):
    bottoms, shapes = NO_IMAGES[text]

    tops = make_layer(text, bottoms).forward()

    assert [top.shape for top in tops] == shapes


def test_a_background_alone_has_no_precision():
    param = 'type: "DetectionEvaluate" detection_evaluate_param { num_classes: 1 }'

    [top] = make_layer(param, [np.zeros((1, 1, 0, 7)), np.zeros((1, 1, 0, 8))]).forward()

    assert top.shape == (1, 1, 0, 5)


def test_a_deconvolution_of_no_places_is_refused(backend):
    text = 'type: "Deconvolution" convolution_param { num_output: 2 kernel_size: 4 }'

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(1, 3, 0, 2)"):
        make_layer(text, [np.zeros((1, 3, 0, 2))], device=backend)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_sequences_of_no_steps_are_refused(kind):
    text = f'type: "{kind}" recurrent_param {{ num_output: 4 }}'

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(0, 2, 3)"):
        make_layer(text, [np.zeros((0, 2, 3)), np.zeros((0, 2))])


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
