"""Images become blobs as OpenCV 4 makes them; expected values were computed by OpenCV 4.14."""

import numpy as np
import pytest
from expect_error import expect_error
from opencv_nets import sample_image

from demitasse import cvdnn
from demitasse.errors import ErrorCode

SHRUNK = [[81, 20, 214, 152], [97, 35, 229, 167], [111, 50, 95, 182]]
GROWN_ROW = [37, 111, 83, 28, 114, 200, 144, 117, 191]
CROPPED = [[95, 73, 212, 95], [106, 85, 223, 106], [117, 96, 235, 117], [128, 107, 50, 129]]


def test_images_are_resized_to_the_very_values():
    shrunk = cvdnn.blobFromImage(sample_image(5, 7), size=(4, 3), ddepth=cvdnn.CV_8U)
    grown = cvdnn.blobFromImage(sample_image(5, 7), size=(9, 6), ddepth=cvdnn.CV_8U)

    assert shrunk.dtype == np.uint8
    assert shrunk.shape == (1, 3, 3, 4)
    assert shrunk[0, 1].tolist() == SHRUNK
    assert grown[0, 1, 0].tolist() == GROWN_ROW


def test_crop_keeps_the_proportions_and_takes_the_middle():
    blob = cvdnn.blobFromImage(sample_image(5, 7), size=(4, 4), crop=True)

    assert blob.dtype == np.float32
    assert blob[0, 1].tolist() == CROPPED


def test_the_mean_is_subtracted_in_the_order_of_the_blob_then_scaled():
    image = np.full((2, 2, 3), (10, 20, 30), np.uint8)

    blob = cvdnn.blobFromImage(image, 0.5, mean=(4, 6, 8), swapRB=True)

    assert blob[0, :, 0, 0].tolist() == [13, 7, 1]


def test_one_number_as_mean_is_that_of_the_first_channel():
    blob = cvdnn.blobFromImage(np.full((1, 1, 3), 9, np.uint8), mean=5)

    assert blob.ravel().tolist() == [4, 9, 9]


def test_none_is_no_mean_and_no_size():
    image = sample_image(4, 6)

    blob = cvdnn.blobFromImage(image, 0.5, None, None, swapRB=True)

    assert np.array_equal(blob, cvdnn.blobFromImage(image, 0.5, (0, 0), (), swapRB=True))


def test_the_first_image_gives_the_size_where_none_is_asked_for():
    blob = cvdnn.blobFromImages([sample_image(4, 6), sample_image(8, 3)])

    assert blob.shape == (2, 3, 4, 6)


@pytest.mark.parametrize(("channels", "want"), [(1, 1), (3, 3), (4, 4)])
def test_images_have_one_three_or_four_channels(channels, want):
    assert cvdnn.blobFromImage(sample_image(2, 3, channels)).shape == (1, want, 2, 3)


def test_grey_images_need_no_axis_of_channels():
    assert cvdnn.blobFromImage(sample_image(2, 3)[..., 0]).shape == (1, 1, 2, 3)


def test_a_letterbox_adds_a_border_of_its_colour():
    params = cvdnn.Image2BlobParams(
        size=(4, 4), paddingmode=cvdnn.DNN_PMODE_LETTERBOX, borderValue=(7, 8, 9)
    )

    blob = cvdnn.blobFromImageWithParams(np.full((2, 4, 3), 100, np.uint8), params)

    assert blob[0, 2].tolist() == [[9] * 4, [100] * 4, [100] * 4, [9] * 4]


def test_channels_may_come_last():
    params = cvdnn.Image2BlobParams(datalayout=cvdnn.DNN_LAYOUT_NHWC)

    blob = cvdnn.blobFromImageWithParams(sample_image(2, 3), params)

    assert blob.shape == (1, 2, 3, 3)
    assert np.array_equal(blob[0], sample_image(2, 3))


def test_images_come_back_from_a_blob():
    images = [sample_image(2, 3), sample_image(2, 3)[::-1]]

    back = cvdnn.imagesFromBlob(cvdnn.blobFromImages(images))

    assert all(np.array_equal(got, want) for got, want in zip(back, images, strict=True))
    assert cvdnn.imagesFromBlob(np.zeros((1, 1, 2, 3), np.float32))[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("image", "options", "code", "mentions"),
    [
        (None, {}, ErrorCode.INVALID, "NoneType"),
        (np.zeros((2, 3, 2), np.uint8), {}, ErrorCode.SHAPE_MISMATCH, "(2, 3, 2)"),
        (np.zeros((2, 3), bool), {}, ErrorCode.DTYPE_MISMATCH, "bool"),
        (np.zeros((0, 3), np.uint8), {}, ErrorCode.SHAPE_MISMATCH, "(0, 3)"),
        (sample_image(2, 3), {"size": (0, 3)}, ErrorCode.OUT_OF_RANGE, ["size", "(0, 3)"]),
        (sample_image(2, 3), {"size": (3,)}, ErrorCode.COUNT_MISMATCH, ["size", "(3,)"]),
        (sample_image(2, 3), {"ddepth": 6}, ErrorCode.UNKNOWN, ["ddepth", "6"]),
        (sample_image(2, 3), {"ddepth": 0, "mean": 1}, ErrorCode.CONFLICT, "CV_8U"),
        (
            sample_image(2, 3).astype(np.float32),
            {"ddepth": 0},
            ErrorCode.DTYPE_MISMATCH,
            ["uint8", "float32"],
        ),
        (sample_image(2, 3), {"mean": (1, 2, 3, 4, 5)}, ErrorCode.COUNT_MISMATCH, ["mean", "5"]),
    ],
)
def test_what_cannot_become_a_blob_is_refused(image, options, code, mentions):
    with expect_error(cvdnn.error, code, mentions=mentions):
        cvdnn.blobFromImage(image, **options)


@pytest.mark.parametrize(
    ("images", "code", "mentions"),
    [
        ([], ErrorCode.MISSING, "images"),
        ([sample_image(2, 3), sample_image(2, 3, 1)], ErrorCode.COUNT_MISMATCH, "[1, 3]"),
    ],
)
def test_images_must_fit_each_other(images, code, mentions):
    with expect_error(cvdnn.error, code, mentions=mentions) as caught:
        cvdnn.blobFromImages(images)

    assert caught.value.func == "blobFromImagesWithParams"
    assert caught.value.err in caught.value.msg


@pytest.mark.parametrize("blob", [np.zeros((2, 3, 4), np.float32), np.zeros((1, 2, 3, 4)), None])
def test_only_blobs_of_images_become_images(blob):
    with expect_error(cvdnn.error, ErrorCode.SHAPE_MISMATCH, field="blob_"):
        cvdnn.imagesFromBlob(blob)


def test_no_scalefactor_changes_nothing():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)

    np.testing.assert_array_equal(cvdnn.blobFromImage(image, None), cvdnn.blobFromImage(image))


@pytest.mark.parametrize("kind", [np.uint16, np.int16])
def test_resized_integers_are_rounded(kind):
    image = np.array([[0, 1002], [3, 30001]], kind)

    blob = cvdnn.blobFromImage(image, size=(5, 2))

    assert blob.tolist() == [[[[0, 100, 501, 902, 1002], [3, 3003, 15002, 27001, 30001]]]]
