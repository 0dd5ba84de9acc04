"""DataTransformer: crop, mirror, mean and scale, as Caffe does them."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.blob import Blob
from demitasse.errors import ConfigError, DataError, ErrorCode, ShapeError
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.transform.random import RecordRandom
from demitasse.io.data.transform.transformer import DataTransformer
from demitasse.io.proto import BlobProto, TransformationParameter

PHASES = ("TRAIN", "TEST")


def transformer(phase="TEST", *, base_dir=None, random=None, dtype="float32", **fields):
    return DataTransformer(TransformationParameter(**fields), phase, base_dir, random, dtype=dtype)


def random_images(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


def mean_file(folder, mean, legacy=True):
    proto = BlobProto(data=mean.ravel().tolist())
    if legacy:
        proto.num, (proto.channels, proto.height, proto.width) = 1, mean.shape
    else:
        proto.shape.dim.extend(mean.shape)
    (folder / "mean.binaryproto").write_bytes(proto.SerializeToString())
    return "mean.binaryproto"


def given(*words):
    """Random words that a test chooses: for each record (mirror, top, left, unused)."""
    return lambda first, count, step=1: np.array(words, np.uint32)[first::step][:count]


# -- one thing at a time -----------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_any_field_the_values_stay(phase, dtype):
    images = random_images(5, 3, 6, 7)

    out = transformer(phase, dtype=dtype).transform(images)

    assert out.dtype == dtype
    np.testing.assert_array_equal(out, images)


def test_the_scale_is_applied():
    images = random_images(5, 3, 6, 7)

    out = transformer(scale=0.00390625).transform(images)

    np.testing.assert_array_equal(out, images.astype(np.float32) * np.float32(0.00390625))


def test_one_mean_value_is_for_all_channels():
    images = random_images(5, 3, 6, 7)

    out = transformer(mean_value=[100.5]).transform(images)

    np.testing.assert_array_equal(out, images - np.float32(100.5))


def test_each_channel_may_have_its_mean_value():
    images = random_images(5, 3, 6, 7)

    out = transformer(mean_value=[104, 117, 123]).transform(images)

    for channel, value in enumerate((104, 117, 123)):
        np.testing.assert_array_equal(out[:, channel], images[:, channel] - np.float32(value))


def test_the_mean_is_subtracted_before_scaling():
    images = random_images(5, 3, 6, 7)

    out = transformer(mean_value=[104.3], scale=0.017).transform(images)

    want = (images.astype(np.float32) - np.float32(104.3)) * np.float32(0.017)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_mean_file_is_subtracted_pixel_by_pixel(tmp_path, legacy):
    images, mean = random_images(5, 3, 6, 7), random_images(3, 6, 7).astype(np.float32) + 0.25
    name = mean_file(tmp_path, mean, legacy)

    out = transformer(mean_file=name, base_dir=tmp_path).transform(images)

    np.testing.assert_array_equal(out, images - mean)


def test_records_of_floats_are_transformed_too():
    images = random_images(5, 3, 6, 7).astype(np.float32) - 7.5

    out = transformer(mean_value=[1.25], scale=2).transform(images)

    np.testing.assert_array_equal(out, (images - np.float32(1.25)) * 2)


def test_the_centre_is_cut_out_in_phase_test():
    images = random_images(5, 3, 10, 13)

    out = transformer("TEST", crop_size=5).transform(images)

    np.testing.assert_array_equal(out, images[:, :, 2:7, 4:9])


def test_a_mean_file_is_as_large_as_the_records_before_cropping(tmp_path):
    images, mean = random_images(5, 3, 10, 13), random_images(3, 10, 13).astype(np.float32)
    name = mean_file(tmp_path, mean)

    out = transformer("TEST", crop_size=5, mean_file=name, base_dir=tmp_path).transform(images)

    np.testing.assert_array_equal(out, (images - mean)[:, :, 2:7, 4:9])


def test_records_are_cut_anywhere_in_phase_train():
    images = random_images(3, 2, 6, 8)
    random = given((0, 0, 0, 0), (0, 2, 4, 0), (0, 1, 3, 0))

    out = transformer("TRAIN", crop_size=4, random=random).transform(images, first=0)

    for result, image, (top, left) in zip(out, images, [(0, 0), (2, 4), (1, 3)], strict=True):
        np.testing.assert_array_equal(result, image[:, top : top + 4, left : left + 4])


@pytest.mark.parametrize("phase", PHASES)
def test_records_are_mirrored_by_chance_in_both_phases(phase):
    images = random_images(3, 2, 6, 8)
    random = given((1, 0, 0, 0), (2, 0, 0, 0), (7, 0, 0, 0))

    out = transformer(phase, mirror=True, random=random).transform(images, first=0)

    np.testing.assert_array_equal(out[0], images[0, :, :, ::-1])
    np.testing.assert_array_equal(out[1], images[1])
    np.testing.assert_array_equal(out[2], images[2, :, :, ::-1])


def test_a_mirrored_record_is_centred_before_it_is_turned(tmp_path):
    images, mean = random_images(1, 2, 6, 8), random_images(2, 6, 8).astype(np.float32)
    name = mean_file(tmp_path, mean)
    fields = {"mirror": True, "crop_size": 4, "mean_file": name, "scale": 0.5}
    random = given((1, 1, 3, 0))

    out = transformer("TRAIN", base_dir=tmp_path, random=random, **fields).transform(images)

    np.testing.assert_array_equal(out, ((images - mean) * 0.5)[:, :, 1:5, 3:7][:, :, :, ::-1])


# -- chance ------------------------------------------------------------------------------------


def test_every_place_and_both_sides_come_up():
    image = np.arange(20, dtype=np.uint8).reshape(1, 1, 4, 5)
    chance = transformer("TRAIN", crop_size=3, mirror=True, random=RecordRandom(1, "data"))

    out = chance.transform(np.repeat(image, 400, 0), first=0)

    corners = {(int(o[0, 0, 0]), int(o[0, 0, 2])) for o in out}
    places = [5 * top + left for top in range(2) for left in range(3)]
    assert corners == {(p, p + 2) for p in places} | {(p + 2, p) for p in places}


def test_what_happens_to_a_record_depends_on_its_number_alone():
    images = random_images(8, 2, 6, 8)
    fields = {"crop_size": 4, "mirror": True}

    def fresh():
        return transformer("TRAIN", random=RecordRandom(1, "data"), **fields)

    at_once = fresh().transform(images, first=100)
    one_by_one = [fresh().transform(images[i], first=100 + i) for i in range(8)]
    every_other = fresh().transform(images[1::2], first=101, step=2)
    a_list = fresh().transform(list(images), first=100)

    np.testing.assert_array_equal(at_once, one_by_one)
    np.testing.assert_array_equal(at_once[1::2], every_other)
    np.testing.assert_array_equal(at_once, a_list)


def test_another_seed_or_layer_has_other_chances():
    words = [RecordRandom(seed, name)(0, 8) for seed, name in [(1, "a"), (2, "a"), (1, "b")]]

    assert (words[0] != words[1]).any()
    assert (words[0] != words[2]).any()


def test_record_numbers_go_on_by_themselves():
    images = random_images(8, 2, 6, 8)
    fields = {"crop_size": 4, "mirror": True, "random": RecordRandom(1, "data")}
    counting = transformer("TRAIN", **fields)

    halves = [counting.transform(images[:4]), counting.transform(images[4:])]

    at_once = transformer("TRAIN", **fields).transform(images, first=0)
    np.testing.assert_array_equal(np.concatenate(halves), at_once)


# -- what can be transformed -------------------------------------------------------------------


def test_records_of_many_sizes_agree_after_cropping():
    images = [random_images(3, 9, 7), random_images(3, 5, 5), random_images(3, 6, 12)]

    out = transformer("TEST", crop_size=5).transform(images)

    for result, image, (top, left) in zip(out, images, [(2, 1), (0, 0), (0, 3)], strict=True):
        np.testing.assert_array_equal(result, image[:, top : top + 5, left : left + 5])


def test_a_single_array_gives_a_single_array():
    image = random_images(3, 6, 7)

    np.testing.assert_array_equal(transformer().transform(image), image)


def test_nested_lists_are_records():
    images = random_images(2, 1, 3, 4)

    result = transformer().transform(images.tolist())

    np.testing.assert_array_equal(result, transformer().transform(images))


def test_messages_are_transformed():
    images = random_images(2, 3, 6, 7)
    messages = [array_to_datum(image) for image in images]

    np.testing.assert_array_equal(transformer().transform(messages), images)
    np.testing.assert_array_equal(transformer().transform(messages[1]), images[1])


def test_a_blob_is_transformed(backend):
    blob = Blob((2, 3, 6, 7), device=backend)
    blob.data[...] = random_images(2, 3, 6, 7)

    out = transformer(crop_size=4, scale=0.5).transform(blob)

    np.testing.assert_array_equal(out, blob.data[:, :, 1:5, 1:5] * 0.5)


def test_the_result_can_be_put_somewhere():
    images, room = random_images(2, 3, 6, 7), np.full((2, 3, 4, 4), np.nan, np.float32)

    out = transformer(crop_size=4).transform(images, room)

    assert out is room
    np.testing.assert_array_equal(room, images[:, :, 1:5, 1:5])


def test_the_shape_can_be_asked_for():
    assert transformer().infer_shape((3, 6, 7)) == (3, 6, 7)
    assert transformer(crop_size=4).infer_shape((3, 6, 7)) == (3, 4, 4)


# -- refusals ----------------------------------------------------------------------------------


def test_a_mean_file_and_mean_values_exclude_each_other(tmp_path):
    with expect_error(
        ConfigError, ErrorCode.CONFLICT, mentions=["mean_file", "mean_value"], field="mean_value"
    ):
        transformer(mean_file="mean.binaryproto", mean_value=[1])


def test_scaling_of_deeplab_is_refused():
    with expect_error(
        ConfigError, ErrorCode.UNSUPPORTED, mentions="scale_factors", field="scale_factors"
    ):
        transformer(scale_factors=[0.5, 1])


def test_both_kinds_of_channels_cannot_be_forced():
    with expect_error(
        ConfigError, ErrorCode.CONFLICT, mentions=["force_color", "force_gray"], field="force_color"
    ):
        transformer(force_color=True, force_gray=True)


def test_a_missing_mean_file_is_named(tmp_path):
    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions="none.binaryproto"):
        transformer(mean_file="none.binaryproto", base_dir=tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xff\xff", BlobProto(data=[1.0]).SerializeToString()])
def test_a_file_that_holds_no_mean_is_refused(tmp_path, content):
    (tmp_path / "bad.binaryproto").write_bytes(content)

    with expect_error(DataError, mentions="bad.binaryproto"):
        transformer(mean_file="bad.binaryproto", base_dir=tmp_path)


@pytest.mark.parametrize("images", [random_images(2, 3, 6, 7), [random_images(3, 6, 7)]])
@pytest.mark.parametrize("phase", PHASES)
def test_a_crop_larger_than_the_records_is_refused(phase, images):
    with expect_error(
        ShapeError, ErrorCode.OUT_OF_RANGE, field="crop_size", got=(7, 7), expected=(6, 7)
    ):
        transformer(phase, crop_size=7).transform(images)


def test_a_mean_of_another_size_is_refused(tmp_path):
    name = mean_file(tmp_path, np.zeros((3, 6, 6), np.float32))

    with expect_error(
        ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["(3, 6, 6)", "(3, 6, 7)"], field="mean_file"
    ):
        transformer(mean_file=name, base_dir=tmp_path).transform(random_images(2, 3, 6, 7))


@pytest.mark.parametrize("values", [2, 4])
def test_another_number_of_mean_values_is_refused(values):
    with expect_error(
        ShapeError,
        ErrorCode.COUNT_MISMATCH,
        field="mean_value",
        got=values,
        expected=3,
    ):
        transformer(mean_value=[1] * values).transform(random_images(2, 3, 6, 7))


def test_a_gray_record_takes_a_single_mean_value():
    with expect_error(ShapeError, ErrorCode.COUNT_MISMATCH, mentions="expected 1 (channels: 1)"):
        transformer(mean_value=[1, 2, 3]).transform(random_images(2, 1, 6, 7))


def test_records_of_many_sizes_are_refused_without_a_crop():
    with expect_error(
        ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="record 1", got=(3, 5, 5), expected=(3, 6, 7)
    ):
        transformer().transform([random_images(3, 6, 7), random_images(3, 5, 5)])


def test_too_little_room_is_refused():
    with expect_error(
        ShapeError, ErrorCode.SHAPE_MISMATCH, got=(2, 3, 6, 7), expected=(2, 3, 6, 6)
    ):
        transformer().transform(random_images(2, 3, 6, 7), np.empty((2, 3, 6, 6), np.float32))


@pytest.mark.parametrize(
    "nothing", [np.empty((0, 3, 2, 2), np.uint8), [], np.empty((2, 2)), [np.empty((2, 2))]]
)
def test_what_is_no_record_is_refused(nothing):
    with pytest.raises(ShapeError):
        transformer().transform(nothing)


def test_an_empty_record_is_refused():
    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE):
        transformer().infer_shape((0, 6, 7))


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mean", [[], [30.5], [104, 117, 123]])
def test_small_records_that_are_cut_all_at_once_are_those_cut_one_by_one(dtype, mirror, mean):
    images = random_images(9, 3, 12, 14)
    fields = {"crop_h": 7, "crop_w": 9, "mirror": mirror, "mean_value": mean, "scale": 0.3}
    one = transformer("TRAIN", random=RecordRandom(3, "data"), dtype=dtype, **fields)

    together = one.transform(images, first=5, step=2)
    apart = one.transform(list(images), first=5, step=2)

    np.testing.assert_array_equal(together, apart, strict=True)
