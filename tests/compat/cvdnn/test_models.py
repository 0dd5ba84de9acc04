"""Models: what is done to images before a net and to its outputs after it."""

import numpy as np
import pytest
from expect_error import expect_error
from opencv_nets import BRANCHES, IMAGE_DETECTOR, MAPS, NO_SHAPE, net_of, sample_image

from demitasse import cvdnn
from demitasse.errors import ErrorCode

MEAN_OF_PLANES = """
input: "data" input_shape { dim: 1 dim: 3 dim: 2 dim: 2 }
layer {
  name: "pool" type: "Pooling" bottom: "data" top: "y"
  pooling_param { pool: AVE global_pooling: true }
}
"""

WITH_INFO = """
layer {
  name: "in" type: "Input" top: "data" top: "im_info"
  input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } shape { dim: 1 dim: 3 } }
}
layer { name: "flat" type: "Flatten" bottom: "data" top: "flat" }
layer { name: "info" type: "Power" bottom: "im_info" top: "info" }
"""


def test_the_size_of_the_net_is_the_size_of_images_at_first():
    (output,) = cvdnn.Model(net_of(MEAN_OF_PLANES)).predict(np.full((5, 9, 3), 7, np.uint8))

    assert output.ravel().tolist() == [7, 7, 7]


def test_settings_return_the_model():
    model = cvdnn.Model(net_of(MAPS))

    chained = model.setInputSize((1, 1)).setInputMean((1, 2, 3)).setInputScale(2)
    chained = chained.setInputSwapRB(True).setInputCrop(True).enableWinograd(False)
    chained = chained.setPreferableBackend(0).setPreferableTarget(0).setOutputNames(["power"])

    assert chained is model
    (output,) = model.predict(np.full((1, 1, 3), (10, 20, 30), np.uint8))
    assert output.ravel().tolist() == [3 * 2 * 29, 3 * 2 * 18, 3 * 2 * 7]


def test_a_model_needs_a_size():
    model = cvdnn.Model(net_of(NO_SHAPE))
    with expect_error(cvdnn.error, ErrorCode.COUNT_MISMATCH, place="setInputSize", field="size"):
        model.setInputSize(3)
    with expect_error(cvdnn.error, ErrorCode.MISSING, mentions="setInputSize"):
        model.predict(sample_image(2, 2))

    for chained in (
        model.setInputSize(3, 2),
        model.setInputSize(size=(3, 2)),
        model.setInputSize(width=3, height=2),
    ):
        assert chained.predict(sample_image(4, 4))[0].shape == (1, 3, 2, 3)


def test_classify_gives_the_best_class():
    model = cvdnn.ClassificationModel(net_of(MEAN_OF_PLANES))
    frame = np.full((2, 2, 3), (1, 3, 2), np.uint8)

    assert model.classify(frame) == (1, 3.0)

    assert model.setEnableSoftmaxPostProcessing(True).getEnableSoftmaxPostProcessing()
    best, probability = model.classify(frame)
    assert best == 1
    assert probability == pytest.approx(np.exp(0) / np.exp([0, -1, -2]).sum(), rel=1e-6)


def test_classify_needs_one_output():
    model = cvdnn.ClassificationModel(net_of(BRANCHES))

    with expect_error(cvdnn.error, got=["tanh", "sum"], mentions="setOutputNames"):
        model.classify(sample_image(2, 2, 4))


def test_segment_gives_the_best_class_of_each_pixel():
    model = cvdnn.SegmentationModel(net_of(MAPS))

    mask = model.segment(sample_image(4, 4))

    assert mask.dtype == np.uint8
    # by OpenCV 4.14
    assert mask.tolist() == [[2, 2, 0, 2], [1, 2, 2, 2], [2, 0, 2, 1], [2, 2, 2, 2]]


def test_segment_needs_maps():
    text = BRANCHES.split('layer { name: "tanh"')[0].replace("Slice", "Flatten")
    model = cvdnn.SegmentationModel(net_of(text.replace('top: "b" slice_param { axis: 1 }', "")))

    with expect_error(cvdnn.error, ErrorCode.SHAPE_MISMATCH, got=(1, 16)):
        model.segment(sample_image(2, 2, 4))


def test_detect_gives_boxes_in_pixels_of_the_image():
    model = cvdnn.DetectionModel(net_of(IMAGE_DETECTOR))
    model.setInputParams(1 / 255.0, (4, 4))
    assert model.getNmsAcrossClasses() is False
    assert model.setNmsAcrossClasses(True).getNmsAcrossClasses() is True

    classes, scores, boxes = model.detect(sample_image(20, 30, 1), 0.6)

    assert (classes.dtype, scores.dtype, boxes.dtype) == (np.int32, np.float32, np.int32)
    # by OpenCV 4.14
    assert classes.tolist() == [1, 1, 1, 1]
    assert np.allclose(scores, [0.909804, 0.909804, 0.7568628, 0.7568628])
    assert boxes.tolist() == [[7, 0, 23, 12], [7, 4, 23, 16], [0, 0, 27, 17], [0, 10, 27, 10]]


def test_nothing_detected_is_empty_tuples():
    model = cvdnn.DetectionModel(net_of(IMAGE_DETECTOR)).setInputScale(1 / 255)

    assert model.detect(sample_image(20, 30, 1), confThreshold=2) == ((), (), ())


def test_detect_needs_a_net_that_detects():
    with expect_error(cvdnn.error, layer="power", mentions="DetectionOutput"):
        cvdnn.DetectionModel(net_of(MAPS)).detect(sample_image(4, 4))


def test_detect_names_the_layer_to_ask_for_if_other_outputs_are_no_detections():
    side = 'layer { name: "side" type: "Power" bottom: "data" top: "side" }'
    before, found, after = IMAGE_DETECTOR.partition('layer {\n  name: "found"')
    model = cvdnn.DetectionModel(net_of(before + side + found + after)).setInputScale(1 / 255)
    image = sample_image(20, 30, 1)

    with expect_error(cvdnn.error, ErrorCode.SHAPE_MISMATCH, mentions="setOutputNames(['found'])"):
        model.detect(image)
    classes, *_ = model.setOutputNames(["found"]).detect(image)

    assert len(classes)


def test_a_net_with_im_info_is_told_the_size():
    model = cvdnn.Model(net_of(WITH_INFO)).setOutputNames(["info"])

    (info,) = model.predict(sample_image(9, 9))

    assert info.tolist() == [[4, 4, pytest.approx(1.6)]]
