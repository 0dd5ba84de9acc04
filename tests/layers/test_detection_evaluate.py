"""DetectionEvaluate: which detections are right."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer
from demitasse.training.evaluation import reason_not_shareable

# image, class, instance, box, difficult
OBJECTS = np.array(
    [
        [0, 1, 0, 0.1, 0.1, 0.5, 0.5, 0],
        [0, 1, 1, 0.6, 0.6, 0.9, 0.9, 1],
        [0, 2, 0, 0.1, 0.6, 0.4, 0.9, 0],
        [1, 2, 0, 0, 0, 1, 1, 0],
    ]
).reshape(1, 1, -1, 8)
# image, class, score, box
DETECTIONS = np.array(
    [
        [0, 1, 0.7, 0.1, 0.1, 0.5, 0.4],  # found, but one with a higher score has it
        [0, 1, 0.9, 0.1, 0.1, 0.5, 0.5],
        [0, 1, 0.8, 0.6, 0.6, 0.9, 0.9],  # difficult
        [0, 2, 0.6, 0.5, 0.0, 0.9, 0.3],  # nothing there
        [1, 1, 0.5, 0, 0, 1, 1],  # another class
        [1, 2, 0.4, 0, 0, 0.8, 0.8],
    ]
).reshape(1, 1, -1, 7)


def judge(fields="", detections=DETECTIONS, objects=OBJECTS, **options):
    text = f'type: "DetectionEvaluate" detection_evaluate_param {{ num_classes: 3 {fields} }}'
    one = make_layer(text, [detections, objects], **options)
    [rows] = one.forward()
    return rows[0, 0]


def test_each_detection_is_right_or_wrong(backend):
    rows = judge(device=backend)

    expected = [
        [-1, 1, 2, -1, -1],
        [-1, 2, 2, -1, -1],
        [0, 1, 0.9, 1, 0],
        [0, 1, 0.8, 1, 0],
        [0, 1, 0.7, 0, 1],
        [0, 2, 0.6, 0, 1],
        [1, 1, 0.5, 0, 1],
        [1, 2, 0.4, 1, 0],
    ]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


def test_difficult_objects_may_count_neither_way():
    rows = judge("evaluate_difficult_gt: false")

    assert rows[0].tolist() == [-1, 1, 1, -1, -1]
    assert rows[3, 3:].tolist() == [0, 0]


def test_a_detection_must_overlap_enough():
    assert judge("overlap_threshold: 0.63")[-1, 3:].tolist() == [1, 0]
    assert judge("overlap_threshold: 0.65")[-1, 3:].tolist() == [0, 1]


def test_nothing_detected_leaves_the_classes():
    nothing = np.array([[[[0, -1, -1, -1, -1, -1, -1.0]]]])

    assert judge(detections=nothing).tolist() == [[-1, 1, 2, -1, -1], [-1, 2, 2, -1, -1]]


def test_nothing_to_detect_makes_all_wrong():
    rows = judge(objects=np.full((1, 1, 1, 8), -1.0))

    assert rows[:2, 2].tolist() == [0, 0]
    assert rows[2:, 4].tolist() == [1] * 6


def test_boxes_may_be_compared_in_pixels(tmp_path):
    (tmp_path / "sizes.txt").write_text("a 8 8\nb 100 100\n")
    half = np.array([[[[0, 1, 0.5, 0, 0, 0.5, 0.875]]]])
    whole = np.array([[[[0, 1, 0, 0, 0, 1, 0.875, 0]]]])
    field = 'name_size_file: "sizes.txt" overlap_threshold: 0.53'
    text = f'type: "DetectionEvaluate" detection_evaluate_param {{ num_classes: 3 {field} }}'
    one = make_layer(text, [half, whole], base_dir=tmp_path)

    right = [one.forward()[0][0, 0, 2, 3] for _ in range(3)]

    assert right == [1, 0, 1]  # 5 of 9 pixels; 51 of 101; the first again


def test_the_place_in_the_file_of_sizes_is_state(tmp_path):
    (tmp_path / "sizes.txt").write_text("a 8 8\nb 100 100\n")
    (tmp_path / "net.prototxt").write_text("""
        layer { name: "in" type: "Input" top: "found" top: "there" input_param {
            shape { dim: [1, 1, 1, 7] } shape { dim: [1, 1, 1, 8] } } }
        layer { name: "judge" type: "DetectionEvaluate" bottom: "found" bottom: "there" top: "right"
            detection_evaluate_param { num_classes: 3 name_size_file: "sizes.txt" } }""")
    net = Net(tmp_path / "net.prototxt", "TEST", device="numpy")
    layer = net.layer_by_name("judge")
    net.blobs["found"].data = [0, 1, 0.5, 0, 0, 0.5, 0.875]
    net.blobs["there"].data = [0, 1, 0, 0, 0, 1, 0.875, 0]

    roll_back = net.savepoint()
    net.forward()

    assert layer.state() == {"seen": 1}
    assert reason_not_shareable(net)
    roll_back()
    assert layer.state() == {"seen": 0}


def test_without_a_file_of_sizes_there_is_no_state():
    one = make_layer(
        'type: "DetectionEvaluate" detection_evaluate_param { num_classes: 3 }',
        [DETECTIONS, OBJECTS],
    )

    assert one.layer.state() == {}
    assert not one.layer.has_counters


def test_boxes_in_padded_images_are_compared_where_the_image_is(tmp_path):
    (tmp_path / "sizes.txt").write_text("a 100 200\n")
    found = np.array([[[[0, 1, 0.5, 0, 0, 1, 0.75]]]])  # begins in the padding above
    there = np.array([[[[0, 1, 0, 0, 0.25, 1, 0.75, 0]]]])
    resize = "resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 300 width: 300 }"

    rows = judge(
        f'name_size_file: "sizes.txt" {resize} overlap_threshold: 0.99',
        found,
        there,
        base_dir=tmp_path,
    )

    assert rows[-1, 3:].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("fields", "error", "code", "mentions"),
    [
        (
            "overlap_threshold: 0",
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            "detection_evaluate_param.overlap_threshold",
        ),
        ("background_label_id: 1", NetError, ErrorCode.OUT_OF_RANGE, "class 1"),
        ('name_size_file: "none.txt"', DataError, ErrorCode.UNREADABLE, "none.txt"),
        ('name_size_file: "two.txt"', DataError, ErrorCode.INVALID, "two.txt"),
        ('name_size_file: "one.txt"', DataError, ErrorCode.COUNT_MISMATCH, ["one.txt", "image 1"]),
    ],
)
def test_refused(fields, error, code, mentions, tmp_path):
    (tmp_path / "one.txt").write_text("a 8 8\n")
    (tmp_path / "two.txt").write_text("a 8\n")

    with expect_error(error, code, mentions=mentions):
        judge(fields, base_dir=tmp_path)


def test_other_shapes_are_refused():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(1, 1, K, 7)"):
        judge(detections=DETECTIONS[..., :6])
