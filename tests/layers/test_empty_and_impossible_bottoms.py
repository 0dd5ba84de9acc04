"""Bottoms without values along an axis, and detections of images that there cannot be."""

import numpy as np
import pytest

from demitasse.errors import NetError
from demitasse.testing.single_layer import make_layer


def test_the_softmax_of_nothing_is_nothing(backend):
    layer = make_layer('type: "Softmax"', [np.zeros((3, 0))], device=backend, dtype="float32")

    [top] = layer.forward()
    [diff] = layer.backward(np.zeros((3, 0)))

    assert top.shape == diff.shape == (3, 0)


@pytest.mark.parametrize("image", [np.inf, 1e30, np.nan, -3])
def test_a_detection_in_an_image_that_cannot_be_is_refused(image):
    detection = [[[[image, 1, 0.5, 0, 0, 1, 1]]]]
    truth = [[[[0, 1, 0, 0, 0, 1, 1, 0]]]]
    layer = make_layer(
        'type: "DetectionEvaluate" detection_evaluate_param { num_classes: 3 }', [detection, truth]
    )

    with pytest.raises(NetError, match="image"):
        layer.forward()


@pytest.mark.parametrize("image", [np.inf, np.nan, -3])
def test_an_object_in_an_image_that_cannot_be_is_refused(image):
    detection = [[[[0, 1, 0.5, 0, 0, 1, 1]]]]
    truth = [[[[image, 1, 0, 0, 0, 1, 1, 0]]]]
    layer = make_layer(
        'type: "DetectionEvaluate" detection_evaluate_param { num_classes: 3 }', [detection, truth]
    )

    with pytest.raises(NetError, match="image"):
        layer.forward()
