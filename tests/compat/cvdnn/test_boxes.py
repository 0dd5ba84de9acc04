"""Overlapping boxes are suppressed as ``cv2.dnn.NMSBoxes`` does."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import cvdnn
from demitasse.errors import ErrorCode

BOXES = [[0, 0, 10, 10], [1, 1, 10, 10], [50, 50, 5, 5]]
SCORES = [0.9, 0.8, 0.7]


def test_a_box_that_overlaps_a_better_one_goes():
    kept = cvdnn.NMSBoxes(BOXES, SCORES, 0.5, 0.4)

    assert kept.dtype == np.int32
    assert kept.tolist() == [0, 2]


def test_the_best_comes_first_and_few_can_be_asked_for():
    assert cvdnn.NMSBoxes(BOXES, [0.6, 0.7, 0.8], 0.5, 1.0).tolist() == [2, 1, 0]
    assert cvdnn.NMSBoxes(BOXES, SCORES, 0.5, 0.4, top_k=1).tolist() == [0]


def test_eta_makes_a_high_threshold_lower_with_each_box_that_stays():
    boxes = [[0, 0, 10, 10], [0, 0, 10, 7], [0, 0, 10, 8]]

    assert len(cvdnn.NMSBoxes(boxes, SCORES, 0, 0.9)) == 3
    assert len(cvdnn.NMSBoxes(boxes, SCORES, 0, 0.9, eta=0.85)) == 2


def test_no_box_is_an_empty_tuple():
    assert cvdnn.NMSBoxes([], [], 0.5, 0.4) == ()
    assert cvdnn.NMSBoxes(BOXES, SCORES, 0.95, 0.4) == ()
    assert cvdnn.NMSBoxesBatched([], [], [], 0.5, 0.4) == ()


def test_boxes_of_other_classes_do_not_suppress():
    assert cvdnn.NMSBoxesBatched(BOXES, SCORES, [0, 1, 0], 0.5, 0.4).tolist() == [0, 1, 2]
    assert cvdnn.NMSBoxesBatched(BOXES, SCORES, [1, 1, 0], 0.5, 0.4).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("boxes", "scores", "options", "code", "mentions"),
    [
        (BOXES, [0.9], {}, ErrorCode.COUNT_MISMATCH, ["3", "1"]),
        ([[0, 0, 1]], [0.9], {}, ErrorCode.SHAPE_MISMATCH, "bboxes"),
        (BOXES, SCORES, {"score_threshold": -1}, ErrorCode.OUT_OF_RANGE, "score_threshold"),
        (BOXES, SCORES, {"eta": 0}, ErrorCode.OUT_OF_RANGE, "eta"),
    ],
)
def test_what_makes_no_sense_is_refused(boxes, scores, options, code, mentions):
    with expect_error(cvdnn.error, code, mentions=mentions):
        cvdnn.NMSBoxes(boxes, scores, **{"score_threshold": 0.5, "nms_threshold": 0.4, **options})


def test_none_stands_for_the_default():
    kept = cvdnn.NMSBoxes(BOXES, SCORES, 0.5, 0.4, None, None)

    assert kept.tolist() == cvdnn.NMSBoxes(BOXES, SCORES, 0.5, 0.4).tolist()
    assert (
        cvdnn.NMSBoxes(BOXES, SCORES, None, None).tolist()
        == cvdnn.NMSBoxes(BOXES, SCORES, 0, 0).tolist()
    )
    assert (
        cvdnn.NMSBoxesBatched(BOXES, SCORES, [0, 1, 0], None, None, None, None).tolist()
        == cvdnn.NMSBoxesBatched(BOXES, SCORES, [0, 1, 0], 0, 0).tolist()
    )
