"""AnnotatedData: images and the boxes in them."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ShapeError
from demitasse.io.data import (
    annotated_datum,
    array_to_datum,
    write_annotations,
    write_database,
)
from demitasse.io.data.databases.writing import write_records
from demitasse.io.proto import AnnotatedDatum
from demitasse.testing import make_layer

COUNT, SIDE = 6, 40


def scene(k):
    """A black image with one bright rectangle; the box says where."""
    rng = np.random.default_rng(k)
    left, top = rng.integers(0, SIDE // 2, 2)
    wide, tall = rng.integers(8, SIDE // 2, 2)
    pixels = np.zeros((3, SIDE, SIDE), np.uint8)
    pixels[:, top : top + tall, left : left + wide] = 200
    box = np.array([left, top, left + wide, top + tall]) / SIDE
    return pixels, [(1 + k % 2, *box, k == 3)]


@pytest.fixture
def folder(tmp_path):
    write_annotations(tmp_path / "boxes", (scene(k) for k in range(COUNT)))
    return tmp_path


@pytest.fixture
def open_layer(folder):
    opened = []

    def open_layer(transform="", sampler="", batch=1, source="boxes", **options):
        text = (
            'type: "AnnotatedData" top: "data" top: "label" '
            f"transform_param {{ {transform} }} annotated_data_param {{ {sampler} }} "
            f'data_param {{ source: "{source}" batch_size: {batch} backend: LMDB }}'
        )
        options.setdefault("phase", "TEST")
        opened.append(make_layer(text, base_dir=folder, dtype="float32", **options))
        return opened[-1]

    yield open_layer
    for one in opened:
        one.layer.close()


def seen(image, threshold=100):
    """Where the bright rectangle of an image is, in units of the image."""
    rows, columns = np.nonzero(image[0] > threshold)
    h, w = image.shape[1:]
    return np.array(
        [columns.min() / w, rows.min() / h, (columns.max() + 1) / w, (rows.max() + 1) / h]
    )


def test_boxes_come_with_their_images(open_layer, backend):
    one = open_layer(batch=4, device=backend)

    data, label = one.forward()

    assert data.shape == (4, 3, SIDE, SIDE)
    assert label.shape == (1, 1, 4, 8)
    for k, row in enumerate(label[0, 0]):
        pixels, [(kind, *box, difficult)] = scene(k)
        np.testing.assert_array_equal(data[k], pixels)
        np.testing.assert_allclose(row, [k, kind, 0, *box, difficult], rtol=1e-6)


@pytest.mark.parametrize(
    ("transform", "sampler", "slack"),
    [
        ("mirror: true", "", 0.001),
        ("crop_size: 30", "", 0.001),
        ("mirror: true crop_h: 32 crop_w: 24", "", 0.001),
        ("resize_param { height: 60 width: 30 }", "", 0.02),
        (
            "resize_param { height: 30 width: 90 resize_mode: FIT_LARGE_SIZE_AND_PAD }",
            "",
            0.02,
        ),
        ("expand_param { max_expand_ratio: 3 } resize_param { height: 80 width: 80 }", "", 0.04),
        (
            "mirror: true resize_param { height: 80 width: 80 }",
            "batch_sampler { max_sample: 1 sampler { min_scale: 0.5 max_scale: 0.9 } "
            "sample_constraint { min_object_coverage: 1 } }",
            0.05,
        ),
        (
            "distort_param { brightness_prob: 1 brightness_delta: 20 } "
            "expand_param { max_expand_ratio: 2 } resize_param { height: 90 width: 90 } "
            "crop_size: 80 mirror: true",
            "batch_sampler { max_sample: 1 sampler { min_scale: 0.6 max_scale: 1 } }",
            0.05,
        ),
    ],
    ids=["mirror", "crop", "both", "warp", "pad", "expand", "sample", "all"],
)
def test_boxes_follow_what_is_done_to_images(transform, sampler, slack, open_layer):
    one = open_layer(transform, sampler, phase="TRAIN")

    checked = 0
    for _ in range(3 * COUNT):
        data, label = one.forward()
        if label[0, 0, 0, 0] == 0 and (data[0, 0] > 100).any():
            np.testing.assert_allclose(label[0, 0, 0, 3:7], seen(data[0]), atol=slack)
            checked += 1
    assert checked > COUNT


def test_a_part_overlaps_an_object_as_it_must(open_layer):
    resize = "resize_param { height: 80 width: 80 }"
    least = 0.3
    bound = f"sample_constraint {{ min_jaccard_overlap: {least} }}"
    sampler = "sampler { min_scale: 0.2 max_scale: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }"

    one = open_layer(
        resize, f"batch_sampler {{ max_sample: 1 max_trials: 1000 {sampler} {bound} }}"
    )

    shares = []
    for _ in range(COUNT):
        _, label = one.forward()
        wide, tall = label[0, 0, 0, 5:7] - label[0, 0, 0, 3:5]
        shares.append(wide * tall)  # of the part that was cut out
    assert min(shares) > least - 0.07  # whole pixels


@pytest.mark.parametrize("emit", ["", "CENTER", "MIN_OVERLAP"])
def test_objects_that_are_hardly_shown_may_be_left_out(emit, open_layer):
    rule = f"emit_constraint {{ emit_type: {emit} emit_overlap: 0.6 }}" if emit else ""
    one = open_layer(f"crop_size: 16 {rule}", phase="TEST")

    for k in range(COUNT):
        _, label = one.forward()

        low = (SIDE - 16) / 2 / SIDE
        high = 1 - low
        box = np.array(scene(k)[1][0][1:5])
        shown = np.clip(box, low, high)
        part = np.prod(shown[2:] - shown[:2]) / np.prod(box[2:] - box[:2])
        centre = (box[:2] + box[2:]) / 2
        stays = {
            "": part > 0,
            "CENTER": ((centre >= low) & (centre <= high)).all(),
            "MIN_OVERLAP": part > 0.6,
        }[emit]
        assert (label[0, 0, 0, 0] == 0) == stays


def test_without_objects_there_is_a_row_of_minus_one(open_layer, folder):
    write_annotations(folder / "empty", [(np.zeros((1, 4, 4), np.uint8), [])])

    _, label = open_layer(source="empty").forward()

    np.testing.assert_array_equal(label, np.full((1, 1, 1, 8), -1))


def test_records_without_a_type_have_labels(open_layer, folder):
    record = AnnotatedDatum(datum=annotated_datum(scene(0)[0], []).datum)
    record.datum.label = 7
    write_records(folder / "plain", [(b"0", record)])

    _, label = open_layer(source="plain").forward()
    _, boxes = open_layer(source="plain", sampler="anno_type: BBOX").forward()

    assert label.tolist() == [7]
    assert boxes.shape == (1, 1, 1, 8)


def test_a_record_without_a_type_that_is_too_small_is_named_or_skipped(open_layer, folder):
    sides = (40, 40, 20, 40)
    images = [np.full((3, side, side), k, np.uint8) for k, side in enumerate(sides)]
    records = [AnnotatedDatum(datum=array_to_datum(image, k)) for k, image in enumerate(images)]
    write_records(folder / "plain", [(b"%d" % k, record) for k, record in enumerate(records)])
    layer = open_layer("crop_size: 30", source="plain", batch=4)

    with expect_error(DataError, mentions=["record '2'", "crop_size"]):
        layer.forward()

    skipping = open_layer("crop_size: 30", source='plain" on_error: "skip', batch=4)
    assert skipping.forward()[1].tolist() == [0, 1, 3, 3]


def test_a_record_is_changed_alike_whoever_reads_it(open_layer):
    fields = (
        "mirror: true expand_param { max_expand_ratio: 2 } resize_param { height: 20 width: 20 }",
        "batch_sampler { max_sample: 3 sampler { min_scale: 0.5 } }",
    )
    singly, together = (open_layer(*fields, batch=n, phase="TRAIN") for n in (1, 4))

    data, label = together.forward()
    for k in range(4):
        one, box = singly.forward()
        np.testing.assert_array_equal(one[0], data[k])
        np.testing.assert_array_equal(box[0, 0, 0, 1:], label[0, 0, label[0, 0, :, 0] == k][0, 1:])


def test_a_resumed_layer_goes_on_where_it_was(open_layer):
    fields = ("mirror: true crop_size: 30", "")
    first, second = (open_layer(*fields, batch=2, phase="TRAIN") for _ in range(2))
    first.forward()
    state = first.layer.state()
    expected = first.forward()

    second.layer.set_state(state)

    for got, wanted in zip(second.forward(), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_records_that_are_not_annotated_are_refused(open_layer, folder):
    write_database(folder / "datum", [(np.zeros((3, 4, 4), np.uint8), 1)])

    with expect_error(DataError, mentions=["datum", "00000000"]):
        open_layer(source="datum")


@pytest.mark.parametrize(
    ("transform", "sampler", "mentions"),
    [
        ("", "batch_sampler { }", "batch_sampler"),
        ("crop_size: 4", "batch_sampler { sampler { min_scale: 0 } }", "min_scale"),
        ("crop_size: 4", "batch_sampler { sampler { max_aspect_ratio: 0.5 } }", "max_aspect_ratio"),
        ("expand_param { max_expand_ratio: 2 }", "", "expand_param"),
    ],
)
def test_fields_that_cannot_be_are_refused(transform, sampler, mentions, open_layer):
    with expect_error(ConfigError, mentions=mentions):
        open_layer(transform, sampler)


@pytest.mark.parametrize(
    ("objects", "error", "mentions"),
    [
        ([(1, 0, 0, 1, 1), (1, 0, 0, 1)], ShapeError, "(G, 5)"),
        ([("cat", 0, 0, 1, 1)], ShapeError, "cat"),
        ([(1, 0, 0, 1)], ShapeError, "(1, 4)"),
        (7, ShapeError, "()"),
        ([(float("nan"), 0, 0, 1, 1)], DataError, "nan"),
        ([(float("inf"), 0, 0, 1, 1)], DataError, "inf"),
        ([(0.5, 0, 0, 1, 1)], DataError, "0.5"),
        ([(1 << 40, 0, 0, 1, 1)], DataError, f"{1 << 40:g}"),
    ],
)
def test_rows_that_are_no_objects_are_refused(objects, error, mentions):
    with expect_error(error, mentions=mentions):
        annotated_datum(np.zeros((1, 2, 2), np.uint8), objects)


@pytest.mark.parametrize("box", [(0.5, 0, 0.4, 1), (0, 0, 1.1, 1), (-0.1, 0, 1, 1)])
def test_boxes_outside_the_image_are_not_written(box):
    with expect_error(DataError, mentions=["0", "1"]):
        annotated_datum(np.zeros((1, 2, 2), np.uint8), [(1, *box)])
