"""SSD's fields of transform_param, one at a time and together."""

import logging

import numpy as np
import pytest
from expect_error import expect_error
from google.protobuf import text_format

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.data.bad_records import RecordError
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.images.colors import bgr_to_hsv
from demitasse.io.data.transform.augment import Augmenter
from demitasse.io.data.transform.random import AUGMENT_WORDS, Choice, RecordRandom
from demitasse.io.data.transform.transformer import DataTransformer
from demitasse.io.proto import TransformationParameter


def param(text):
    return text_format.Parse(text, TransformationParameter())


def random_image(height=12, width=16, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (channels, height, width), np.uint8)


def words(**shares):
    """Random words: 0, but for the choices given as shares of the range."""
    values = np.zeros(AUGMENT_WORDS, np.uint32)
    for name, share in shares.items():
        values[Choice[name.upper()]] = int(share * 2**32)
    return values


def augment(text, image, **shares):
    return Augmenter(param(text))(image, words(**shares))


# -- resize_param --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "size", "becomes"),
    [
        ("WARP", (12, 16), (9, 9)),
        ("FIT_LARGE_SIZE_AND_PAD", (12, 16), (9, 9)),
        ("FIT_SMALL_SIZE", (12, 16), (9, 12)),
        ("FIT_SMALL_SIZE", (16, 12), (12, 9)),
        ("FIT_SMALL_SIZE", (10, 10), (9, 9)),
    ],
)
def test_an_image_is_resized_as_the_mode_says(mode, size, becomes):
    text = f"resize_param {{ height: 9 width: 9 resize_mode: {mode} }}"

    assert augment(text, random_image(*size)).shape == (3, *becomes)


@pytest.mark.parametrize(
    ("pad", "column"),
    [
        ("", [0, 0, 0]),
        ("pad_value: 7", [7, 7, 7]),
        ("pad_value: 7 pad_value: 8 pad_value: 9", [7, 8, 9]),
    ],
)
def test_what_is_lacking_is_filled_with_a_colour(pad, column):
    image = np.full((3, 8, 4), 100, np.uint8)
    text = f"resize_param {{ height: 8 width: 8 resize_mode: FIT_LARGE_SIZE_AND_PAD {pad} }}"

    padded = augment(text, image)

    assert padded.shape == (3, 8, 8)
    assert padded[:, 0, 0].tolist() == padded[:, 7, 7].tolist() == column
    assert (padded[:, :, 2:6] == 100).all()


@pytest.mark.parametrize(("mode", "numpys"), [("MIRRORED", "reflect"), ("REPEAT_NEAREST", "edge")])
def test_what_is_lacking_is_filled_from_the_image(mode, numpys):
    image = random_image(8, 4)
    text = (
        "resize_param { height: 8 width: 9 resize_mode: FIT_LARGE_SIZE_AND_PAD "
        f"pad_mode: {mode} }}"
    )

    padded = augment(text, image)

    np.testing.assert_array_equal(padded, np.pad(image, ((0, 0), (0, 0), (2, 3)), numpys))


def test_one_of_several_interpolations_is_drawn():
    text = "resize_param { height: 5 width: 5 interp_mode: NEAREST interp_mode: AREA }"
    image = random_image()

    first, last = augment(text, image), augment(text, image, interpolation=0.9)

    assert set(np.unique(first)) <= set(np.unique(image))
    assert (first != last).any()


def test_resizing_may_be_left_to_chance():
    text = "crop_size: 5 resize_param { height: 5 width: 5 prob: 0.25 }"

    assert augment(text, random_image(), resize=0.2).shape == (3, 5, 5)
    assert augment(text, random_image(), resize=0.3).shape == (3, 12, 16)


# -- expand_param --------------------------------------------------------------------------------


def test_an_image_lies_somewhere_on_a_larger_canvas():
    text = (
        "crop_size: 5 mean_value: 104 mean_value: 117 mean_value: 123 "
        "expand_param { prob: 0.5 max_expand_ratio: 4 }"
    )
    image = random_image(6, 8)

    canvas = augment(text, image, expand=0.4, expand_ratio=0.34, expand_top=0.5, expand_left=0.99)

    assert canvas.shape == (3, 12, 16)
    np.testing.assert_array_equal(canvas[:, 3:9, 7:15], image)
    assert canvas[:, 0, 0].tolist() == [104, 117, 123]
    assert augment(text, image, expand=0.5) is image


# -- distort_param -------------------------------------------------------------------------------


def test_brightness_is_added():
    text = "distort_param { brightness_prob: 0.5 brightness_delta: 32 }"
    image = random_image()

    brighter = augment(text, image, brightness=0.4, brightness_delta=1 - 2**-20)

    np.testing.assert_array_equal(brighter, np.minimum(image.astype(int) + 32, 255))
    assert augment(text, image, brightness=0.5) is image


def test_contrast_is_multiplied():
    text = "distort_param { contrast_prob: 1 contrast_lower: 0.5 contrast_upper: 1.5 }"
    image = random_image()

    np.testing.assert_array_equal(augment(text, image), np.rint(image * np.float32(0.5)))
    assert augment(text, image, contrast_factor=0.5) is image


def test_contrast_comes_before_or_after_the_colours():
    text = (
        "distort_param { contrast_prob: 1 contrast_lower: 3 contrast_upper: 3 "
        "saturation_prob: 1 saturation_lower: 0.5 saturation_upper: 0.5 }"
    )
    image = random_image()

    last, first = augment(text, image), augment(text, image, order=0.6)

    assert (last != first).any()


def test_saturation_and_hue_change_alone():
    image = np.zeros((3, 1, 1), np.uint8)
    image[:, 0, 0] = (200, 50, 100)
    duller = augment(
        "distort_param { saturation_prob: 1 saturation_lower: 0.5 saturation_upper: 0.5 }", image
    )
    turned = augment("distort_param { hue_prob: 1 hue_delta: 18 }", image, hue_delta=0.999999)

    hsv, dull, turn = (bgr_to_hsv(x)[:, 0, 0].astype(int) for x in (image, duller, turned))

    np.testing.assert_allclose(dull, [hsv[0], hsv[1] / 2, hsv[2]], atol=1.5)
    np.testing.assert_allclose(turn, [hsv[0] + 18, hsv[1], hsv[2]], atol=1.5)


def test_channels_are_shuffled():
    image = random_image()
    text = "distort_param { random_order_prob: 1 }"

    orders = {tuple(augment(text, image, channels_order=(k + 0.5) / 6)[:, 0, 0]) for k in range(6)}

    assert len(orders) == 6


# -- noise_param ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inverse: true", lambda x: 255 - x),
        ("posterize: true", lambda x: x // 64 * 64 + 32),
        ("posterize: true inverse: true", lambda x: 255 - (x // 64 * 64 + 32)),
    ],
)
def test_levels_are_changed(text, expected):
    image = random_image()

    np.testing.assert_array_equal(augment(f"noise_param {{ {text} }}", image), expected(image))


@pytest.mark.parametrize(
    "text", ["hist_eq", "decolorize", "gauss_blur", "erode", "clahe", "convert_to_hsv"]
)
def test_every_kind_of_noise_keeps_size_and_type(text):
    image = random_image()

    noisy = augment(f"noise_param {{ {text}: true }}", image)

    assert (noisy.shape, noisy.dtype) == (image.shape, np.uint8)
    assert (noisy != image).any()


def test_without_colour_all_channels_are_the_same():
    gray = augment("noise_param { decolorize: true }", random_image())

    assert (gray == gray[:1]).all()


def test_lab_is_made_of_numbers():
    lab = augment("noise_param { convert_to_lab: true }", random_image())

    assert lab.dtype == np.float32
    assert lab[0].min() >= 0
    assert lab[0].max() <= 100


@pytest.mark.parametrize("values", ["value: 3", "value: 1 value: 2 value: 3"])
def test_salt_and_pepper_lie_on_some_pixels(values):
    image = np.full((3, 20, 20), 100, np.uint8)
    text = f"noise_param {{ saltpepper: true saltpepper_param {{ fraction: 0.1 {values} }} }}"

    salted = augment(text, image, pixels=0.3)
    other = augment(text, image, pixels=0.4)

    changed = (salted != 100).any(0)
    assert 20 < changed.sum() <= 40
    assert salted[2][changed].tolist() == [3] * int(changed.sum())
    assert (salted != other).any()


def test_noise_happens_always_unless_there_is_a_chance():
    image = random_image()

    assert (augment("noise_param { inverse: true }", image, noise=0.99) != image).all()
    assert augment("noise_param { inverse: true prob: 0.5 }", image, noise=0.5) is image


def test_gray_images_can_be_made_worse_too():
    image = random_image(channels=1)
    text = "noise_param { hist_eq: true clahe: true gauss_blur: true jpeg: 40 decolorize: true }"

    assert augment(text, image).shape == image.shape


# -- together ------------------------------------------------------------------------------------

ALL = """
  mirror: true crop_h: 10 crop_w: 12 mean_value: 104 mean_value: 117 mean_value: 123 scale: 0.5
  distort_param { brightness_prob: 0.5 brightness_delta: 32 contrast_prob: 0.5 contrast_lower: 0.5
    contrast_upper: 1.5 hue_prob: 0.5 hue_delta: 18 saturation_prob: 0.5 saturation_lower: 0.5
    saturation_upper: 1.5 random_order_prob: 0.5 }
  expand_param { prob: 0.5 max_expand_ratio: 4 }
  resize_param { height: 14 width: 15 interp_mode: LINEAR interp_mode: CUBIC }
  noise_param { prob: 0.5 jpeg: 50 saltpepper: true saltpepper_param { fraction: 0.1 value: 9 } }
"""


def transformer(text=ALL, phase="TRAIN", seed=3, name="data"):
    random = RecordRandom(seed, name)
    return DataTransformer(
        param(text), phase, None, random, RecordRandom(seed, name, "augment", AUGMENT_WORDS)
    )


def test_what_happens_to_a_record_depends_on_its_number_alone():
    images = [random_image(20 + k, 30 - k, seed=k) for k in range(8)]

    whole = transformer().transform(images, first=0)
    parts = [transformer().transform(images[k::2], first=k, step=2) for k in range(2)]
    single = [transformer().transform([image], first=k)[0] for k, image in enumerate(images)]

    assert whole.shape == (8, 3, 10, 12)
    np.testing.assert_array_equal(whole[::2], parts[0])
    np.testing.assert_array_equal(whole[1::2], parts[1])
    np.testing.assert_array_equal(whole, single)
    assert (transformer(seed=4).transform(images, first=0) != whole).any()


def test_records_left_out_change_nothing_for_the_others():
    images = [random_image(20, 30, seed=k) for k in range(6)]
    whole = transformer().transform(images, first=5)

    places = [0, 2, 5]
    one = transformer()
    kept = one.augment([images[k] for k in places], first=5, places=places)
    out = np.empty((3, 3, 10, 12), np.float32)
    one.finish(kept, out, first=5, places=places)

    np.testing.assert_array_equal(out, whole[places])


def test_one_field_more_leaves_the_other_choices():
    image = random_image(20, 30)
    resize = "resize_param { height: 8 width: 8 interp_mode: LINEAR interp_mode: NEAREST }"
    noise = "noise_param { prob: 0.5 inverse: true }"
    for number in range(20):
        plain = transformer(resize).transform([image], first=number)
        noisy = transformer(resize + noise).transform([image], first=number)

        assert np.array_equal(plain, noisy) or np.array_equal(plain, 255 - noisy)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_both_phases_augment(phase):
    text = "noise_param { inverse: true } crop_size: 12"
    image = random_image(12, 12)

    out = transformer(text, phase).transform(image)

    np.testing.assert_array_equal(out, 255.0 - image)


def test_the_crop_may_be_wider_than_high():
    image = random_image(12, 16)

    out = transformer("crop_h: 4 crop_w: 10", "TEST").transform(image)

    np.testing.assert_array_equal(out, image[:, 4:8, 3:13])


def test_messages_are_augmented_as_arrays_are():
    images = [random_image(seed=k) for k in range(3)]
    text = "resize_param { height: 5 width: 6 }"

    out = transformer(text).transform([array_to_datum(image) for image in images])

    np.testing.assert_array_equal(out, transformer(text).transform(images))


def test_boxes_are_not_there(caplog):
    with caplog.at_level(logging.WARNING):
        assert not Augmenter(param("emit_constraint { emit_type: CENTER }"))

    (record,) = caplog.records
    assert (record.levelname, "emit_constraint" in record.getMessage()) == ("WARNING", True)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ("resize_param { height: 5 }", "out-of-range", "resize_param.height"),
        ("resize_param { height: 5 width: 5 prob: 0.5 }", "conflict", "resize_param.prob"),
        (
            "mean_file: 'm' crop_size: 2 resize_param { height: 5 width: 5 prob: 0.5 }",
            "conflict",
            "mean_file",
        ),
        ("expand_param { max_expand_ratio: 4 }", "conflict", "expand_param"),
        (
            "expand_param { max_expand_ratio: 0.5 }",
            "out-of-range",
            "expand_param.max_expand_ratio",
        ),
        (
            "mean_file: 'm' crop_size: 5 expand_param { max_expand_ratio: 4 }",
            "conflict",
            "mean_file",
        ),
        (
            "distort_param { brightness_delta: -1 }",
            "out-of-range",
            "distort_param.brightness_delta",
        ),
        (
            "distort_param { contrast_lower: 2 contrast_upper: 1 }",
            "out-of-range",
            "distort_param.contrast_lower",
        ),
        ("noise_param { saltpepper: true }", "invalid", "noise_param.saltpepper"),
        (
            "noise_param { convert_to_hsv: true convert_to_lab: true }",
            "conflict",
            "noise_param.convert_to_hsv",
        ),
    ],
)
def test_fields_that_cannot_be_used_are_refused(text, code, field):
    with expect_error(ConfigError, code, field=field):
        Augmenter(param(text))


@pytest.mark.parametrize("text", ["crop_h: 4", "crop_size: 4 crop_h: 4 crop_w: 4", "crop_w: 3"])
def test_half_a_crop_or_two_crops_are_refused(text):
    with expect_error(ConfigError, ErrorCode.CONFLICT, mentions="crop_size", field="crop_size"):
        transformer(text)


@pytest.mark.parametrize(
    ("text", "image", "code", "mentions"),
    [
        (
            "noise_param { inverse: true }",
            random_image().astype(np.float32),
            "dtype-mismatch",
            ["float32", "3"],
        ),
        (
            "noise_param { inverse: true }",
            random_image(channels=4),
            "dtype-mismatch",
            ["uint8", "4"],
        ),
        (
            "noise_param { convert_to_hsv: true }",
            random_image(channels=1),
            "count-mismatch",
            ["1", "3"],
        ),
        (
            "distort_param { hue_prob: 1 }",
            random_image(channels=1),
            "count-mismatch",
            "force_color",
        ),
        (
            "resize_param { height: 5 width: 5 resize_mode: FIT_LARGE_SIZE_AND_PAD "
            "pad_value: 1 pad_value: 2 }",
            random_image(),
            "count-mismatch",
            ["2", "resize_param.pad_value", "3"],
        ),
        (
            "resize_param { height: 2 width: 2 resize_mode: FIT_LARGE_SIZE_AND_PAD }",
            random_image(1, 40),
            "out-of-range",
            ["1 x 40", "resize_param", "(2, 2)"],
        ),
        (
            "noise_param { saltpepper: true saltpepper_param { value: 1 value: 2 } }",
            random_image(),
            "count-mismatch",
            ["2", "saltpepper_param.value", "3"],
        ),
    ],
)
def test_records_that_are_no_such_images_are_refused(text, image, code, mentions):
    with expect_error(ShapeError, code, mentions=mentions):
        augment(text, image)


def test_the_record_at_fault_is_named():
    with expect_error(RecordError, ErrorCode.DTYPE_MISMATCH, mentions="float32") as caught:
        transformer("noise_param { inverse: true }").transform(
            [random_image(), random_image().astype(np.float32)]
        )

    assert caught.value.index == 1


# -- random_resize_param -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "bounds", "share", "becomes"),
    [
        ((12, 16), "min_size: 6 max_size: 6", 0.5, (6, 8)),
        ((16, 12), "min_size: 6 max_size: 6", 0.5, (8, 6)),
        ((10, 10), "min_size: 6 max_size: 9", 0, (6, 6)),
        ((10, 10), "min_size: 6 max_size: 9", 0.9999, (9, 9)),
        ((10, 15), "min_size: 6 max_size: 9", 0.5, (8, 12)),
        ((10, 15), "", 0, (10, 15)),  # from the image's shorter side
        ((10, 15), "", 0.9999, (15, 22)),  # to its longer side
        ((7, 11), "min_size: 5 max_size: 5 resize_param { interp_mode: CUBIC }", 0, (5, 7)),
    ],
)
def test_the_shorter_side_gets_a_random_length(size, bounds, share, becomes):
    text = f"crop_size: 5 random_resize_param {{ {bounds} }}"

    assert augment(text, random_image(*size), random_size=share).shape == (3, *becomes)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("random_resize_param { min_size: 6 }", ErrorCode.CONFLICT),
        ("crop_size: 5 mean_file: 'a' random_resize_param { }", ErrorCode.CONFLICT),
        ("crop_size: 5 random_resize_param { min_size: 6 max_size: 5 }", ErrorCode.OUT_OF_RANGE),
        (
            "crop_size: 5 noise_param { convert_to_lab: true } random_resize_param { }",
            ErrorCode.CONFLICT,
        ),
    ],
)
def test_a_random_size_needs_a_crop_and_bounds_in_order(text, code):
    with expect_error(ConfigError, code):
        Augmenter(param(text))
