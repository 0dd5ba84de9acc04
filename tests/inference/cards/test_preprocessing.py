"""How images become inputs, and places in inputs places in images."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.inference.cards.card import Preprocess
from demitasse.inference.cards.preprocessing import Preprocessor, View
from demitasse.io.data.images.resize import resize_image

SHAPE = (3, 4, 4)


def an_image(height=6, width=8, channels=3):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (channels, height, width), dtype=np.uint8)


def test_an_image_is_brought_to_the_input_without_a_word():
    image = an_image()

    prepared = Preprocessor(Preprocess("bgr"), SHAPE)(image)

    assert prepared.values.dtype == np.float32
    np.testing.assert_array_equal(prepared.values, resize_image(image, 4, 4))


def test_the_mean_is_subtracted_before_the_scale():
    image = an_image(4, 4)
    how = Preprocess("bgr", mean=(1.0, 2.0, 3.0), scale=(0.5, 1.0, 2.0))

    values = Preprocessor(how, SHAPE)(image).values

    expected = [(image[i] - np.float32(i + 1)) * (0.5, 1, 2)[i] for i in range(3)]
    np.testing.assert_array_equal(values, expected)


def test_red_comes_first_where_the_card_says_so():
    image = an_image(4, 4)

    values = Preprocessor(Preprocess("rgb"), SHAPE)(image).values

    np.testing.assert_array_equal(values, image[::-1])


def test_gray_images_and_gray_nets():
    gray, color = an_image(4, 4, 1), an_image(4, 4)

    np.testing.assert_array_equal(
        Preprocessor(Preprocess("bgr"), SHAPE)(gray).values, np.repeat(gray, 3, axis=0)
    )
    assert Preprocessor(Preprocess("gray"), (1, 4, 4))(color).values.shape == (1, 4, 4)


def test_the_short_side_keeps_the_shape_and_the_middle_is_cut_out():
    image = an_image(6, 12)
    how = Preprocess("bgr", size=(8,), resize="short side", crop=(4, 4))

    prepared = Preprocessor(how, SHAPE)(image)

    np.testing.assert_array_equal(prepared.values, resize_image(image, 8, 16)[:, 2:6, 6:10])
    assert prepared.view == View((6, 12), (8, 16), (2, 6), (4, 4))


@pytest.mark.parametrize("size", [8, 4])
def test_a_mean_image_has_the_size_before_or_after_cropping(tmp_path, size):
    mean = np.arange(3 * size * size, dtype=np.float64).reshape(3, size, size)
    np.save(tmp_path / "mean.npy", mean)
    how = Preprocess("bgr", size=(8, 8), crop=(4, 4), mean=tmp_path / "mean.npy")
    image = an_image(8, 8)

    values = Preprocessor(how, SHAPE)(image).values

    cut = mean if size == 4 else mean[:, 2:6, 2:6]
    np.testing.assert_array_equal(values, image[:, 2:6, 2:6] - cut.astype(np.float32))


def test_a_mean_image_of_another_size_is_refused(tmp_path):
    np.save(tmp_path / "mean.npy", np.zeros((3, 5, 5)))
    prepare = Preprocessor(Preprocess("bgr", mean=tmp_path / "mean.npy"), SHAPE)

    with expect_error(ConfigError, ErrorCode.SHAPE_MISMATCH, field="mean", got=(5, 5)):
        prepare(an_image())


def test_a_mean_with_other_channels_is_refused(tmp_path):
    np.save(tmp_path / "mean.npy", np.zeros(4))

    with expect_error(ConfigError, ErrorCode.SHAPE_MISMATCH, field="mean", mentions="(4, 1, 1)"):
        Preprocessor(Preprocess("bgr", mean=tmp_path / "mean.npy"), SHAPE)


def test_a_net_with_other_channels_is_refused():
    with expect_error(ConfigError, ErrorCode.SHAPE_MISMATCH, field="channels", got=1, expected=3):
        Preprocessor(Preprocess("gray"), SHAPE)


def test_an_image_smaller_than_its_crop_is_broken():
    prepare = Preprocessor(Preprocess("bgr", resize="none", crop=(4, 4)), SHAPE)

    with expect_error(DataError, ErrorCode.SHAPE_MISMATCH, got=(3, 9), expected=(4, 4)):
        prepare(an_image(3, 9))


def test_a_thin_image_is_not_made_enormous():
    prepare = Preprocessor(Preprocess("bgr", size=(256,), resize="short side"), SHAPE)

    with expect_error(DataError, ErrorCode.LIMIT, got=(256, 128000)):
        prepare(an_image(1, 500))


def test_boxes_find_their_way_back():
    view = View(image=(60, 120), resized=(8, 16), corner=(2, 6), input=(4, 4))

    [box] = view.boxes_in_image(np.array([[0.25, 0.5, 0.75, 2.5]], np.float32))

    # x: (0.25 * 4 + 6) of 16 is 7 / 16 of 120 pixels; the lower edge is outside
    np.testing.assert_allclose(box, [52.5, 30, 67.5, 60])


def test_masks_find_their_way_back():
    view = View(image=(4, 8), resized=(4, 8), corner=(0, 2), input=(4, 4))
    mask = np.array([[1, 2], [3, 4]])

    placed = view.mask_in_image(mask)

    np.testing.assert_array_equal(placed[0], [0, 0, 1, 1, 2, 2, 0, 0])
    np.testing.assert_array_equal(placed[3], [0, 0, 3, 3, 4, 4, 0, 0])
