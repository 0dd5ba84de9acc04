"""Images and arrays for nets: ``caffe.io``."""

import io as files
import itertools
import os
import sys
import types

import numpy as np
import pytest
from expect_error import expect_error
from PIL import Image

import demitasse
from demitasse.compat.pycaffe import io
from demitasse.compat.pycaffe.proto import caffe_pb2
from demitasse.errors import ErrorCode

rng = np.random.default_rng(3)

RGB = rng.integers(0, 256, (6, 9, 4), np.uint8)
"""An image with transparency."""


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (2, 3, 4, 5, 6)])
def test_arrays_survive_a_blob_message(shape):
    data, diff = rng.random(shape).astype(np.float32), rng.random(shape).astype(np.float32)

    blob = io.array_to_blobproto(data, diff)

    assert tuple(blob.shape.dim) == shape
    np.testing.assert_array_equal(io.blobproto_to_array(blob), data)
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), diff)


def test_old_blob_messages_have_four_numbers_for_a_shape():
    blob = caffe_pb2.BlobProto(num=1, channels=2, height=1, width=3, data=range(6))

    array = io.blobproto_to_array(blob)

    assert array.shape == (1, 2, 1, 3)
    assert array.dtype == np.float64


def test_a_blob_message_of_one_number_needs_no_shape():
    assert io.blobproto_to_array(caffe_pb2.BlobProto(data=[123])) == 123


def test_a_blob_message_needs_as_many_values_as_its_shape_says():
    with expect_error(ValueError, mentions=["100", "()"]):
        io.blobproto_to_array(caffe_pb2.BlobProto(data=[0.0] * 100))


def test_several_arrays_survive_as_bytes():
    arrays = [np.arange(4.0), np.ones((2, 3))]

    back = io.blobprotovector_str_to_arraylist(io.arraylist_to_blobprotovector_str(arrays))

    for before, after in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(before, after)


def test_bytes_stay_bytes_in_a_datum():
    pixels = RGB.transpose(2, 0, 1)

    datum = io.array_to_datum(pixels, label=0)

    assert (datum.channels, datum.height, datum.width) == (4, 6, 9)
    assert datum.HasField("label")
    back = io.datum_to_array(datum)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, pixels)
    back[0] = 0  # a copy, which can be written to


def test_other_numbers_are_floats_in_a_datum():
    datum = io.array_to_datum(np.full((1, 2, 2), -3))

    assert not datum.HasField("label")
    assert not datum.data
    np.testing.assert_array_equal(io.datum_to_array(datum), np.full((1, 2, 2), -3.0))


def test_a_datum_has_three_axes():
    with expect_error(ValueError, mentions="(2, 2)"):
        io.array_to_datum(np.zeros((2, 2)))


def test_compressed_images_are_not_taken_for_pixels():
    with expect_error(ValueError, mentions="demitasse.io.data.datum_to_array"):
        io.datum_to_array(caffe_pb2.Datum(encoded=True, data=b"\xff\xd8"))
    assert callable(demitasse.io.data.datum_to_array)  # the name that the message gives


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    def save(image, name="image.png", **options):
        path = tmp_path / name
        image.save(path, **options)
        return path

    return save


def test_a_image_is_red_first_between_0_and_1(saved):
    path = saved(Image.fromarray(RGB[..., :3]))

    image = io.load_image(str(path))

    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, (RGB[..., :3] / 255).astype(np.float32))


@pytest.mark.parametrize("name", ["image.png", "image.tif"])
def test_transparency_is_dropped(saved, name):
    image = io.load_image(saved(Image.fromarray(RGB), name))

    np.testing.assert_allclose(image, RGB[..., :3] / 255)


def test_grey_images_get_three_channels_or_one(saved):
    path = saved(Image.fromarray(RGB[..., 0]))

    assert io.load_image(path).shape == (6, 9, 3)
    np.testing.assert_allclose(io.load_image(path, color=False)[..., 0], RGB[..., 0] / 255)


def test_colours_become_grey_by_brightness(saved):
    image = io.load_image(saved(Image.new("RGB", (2, 1), (255, 0, 0))), color=False)

    np.testing.assert_allclose(image, np.full((1, 2, 1), 0.2125), rtol=1e-6)


@pytest.mark.parametrize("name", ["image.png", "image.pgm", "image.tif"])
def test_sixteen_bits_keep_their_depth(saved, name):
    values = np.array([[0, 1, 32768, 65535]], np.uint16)

    image = io.load_image(saved(Image.fromarray(values), name), color=False)

    np.testing.assert_allclose(image[0, :, 0], values[0] / 65535)


def test_palettes_are_looked_up(saved):
    indexed = Image.fromarray(RGB[..., :3]).quantize(16)

    image = io.load_image(saved(indexed, "image.gif"))

    np.testing.assert_allclose(image, np.asarray(indexed.convert("RGB")) / 255)


def test_inks_become_light(saved):
    inks = Image.new("CMYK", (2, 1), (0, 255, 255, 0))

    image = io.load_image(saved(inks, "image.tif"))

    np.testing.assert_allclose(image, [[[1, 0, 0]] * 2], atol=0.01)


def test_black_and_white_are_0_and_1(saved):
    bits = Image.fromarray(np.array([[0, 255, 0]], np.uint8)).convert("1")

    np.testing.assert_array_equal(io.load_image(saved(bits), color=False)[0, :, 0], [0, 1, 0])


@pytest.mark.parametrize("color", [True, False])
def test_grey_images_may_be_transparent(saved, color):
    grey, alpha = (Image.fromarray(np.ascontiguousarray(RGB[..., n])) for n in range(2))
    path = saved(Image.merge("LA", (grey, alpha)))

    image = io.load_image(path, color)

    want = np.repeat(RGB[..., :1], 3 if color else 1, 2) / 255
    np.testing.assert_allclose(image, want, rtol=1e-6)


def test_colours_of_a_palette_may_be_transparent(saved):
    indexed = Image.fromarray(RGB[..., :3]).quantize(8)

    image = io.load_image(saved(indexed, transparency=3))

    np.testing.assert_allclose(image, np.asarray(indexed.convert("RGB")) / 255)


@pytest.mark.parametrize(("kind", "scale"), [(np.int32, 2**31 - 1), (np.float32, 1)])
def test_wide_numbers_of_tiffs_keep_their_depth(saved, kind, scale):
    values = np.array([[0, 1, 70_000]], kind)

    image = io.load_image(saved(Image.fromarray(values), "image.tif"), color=False)

    np.testing.assert_allclose(image[0, :, 0], values[0] / scale, rtol=1e-6)


def test_images_are_not_turned_upright(saved):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter

    image = io.load_image(saved(Image.fromarray(RGB[..., :3]), "image.jpg", exif=exif))

    assert image.shape == (6, 9, 3)


def test_open_files_are_read(saved):
    file = saved(Image.fromarray(RGB[..., :3]))

    assert io.load_image(files.BytesIO(file.read_bytes())).shape == (6, 9, 3)
    assert io.load_image(os.fsencode(file)).shape == (6, 9, 3)


def test_what_is_no_image_is_an_oserror(tmp_path):
    (tmp_path / "notes.jpg").write_text("milk, bread")

    with expect_error(OSError, mentions="notes.jpg"):
        io.load_image(tmp_path / "notes.jpg")
    with pytest.raises(FileNotFoundError):
        io.load_image(tmp_path / "missing.jpg")


def test_addresses_are_refused():
    with expect_error(ValueError, mentions="http://example.com/cat.jpg"):
        io.load_image("http://example.com/cat.jpg")


# -- sizes ----------------------------------------------------------------------------------------


def bilinear(image, height, width):
    """Every new pixel as the sum over all old ones; around the image is its smallest value."""
    low = image.min()
    result = np.full((height, width, image.shape[2]), low, np.float64)
    for y, x, old_y, old_x in itertools.product(*map(range, (height, width, *image.shape[:2]))):
        down = abs((y + 0.5) * image.shape[0] / height - 0.5 - old_y)
        across = abs((x + 0.5) * image.shape[1] / width - 0.5 - old_x)
        share = max(0, 1 - down) * max(0, 1 - across)
        result[y, x] += share * (image[old_y, old_x] - low)
    return result


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(5, 7), (12, 15), (3, 20), (1, 1), (6, 9)])
def test_pixels_are_squares_in_grey_and_colour(channels, size):
    image = rng.random((6, 9, channels)).astype(np.float32) * 100 - 20

    resized = io.resize_image(image, size)

    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized, bilinear(image.astype(np.float64), *size), atol=1e-5)


def test_pixels_are_points_with_other_numbers_of_channels():
    image = rng.random((4, 7, 5))

    resized = io.resize_image(image, (7, 13))

    np.testing.assert_allclose(resized[::2, ::2], image, rtol=1e-6)
    np.testing.assert_allclose(resized[1, 0], (image[0, 0] + image[1, 0]) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (2, [0, 0.271429, 1, 2.1, 4, 7.128571, 9]),
        (3, [0, 0.3, 1, 2.0, 4, 7.2, 9]),
        (4, [0, 0.331823, 1, 1.911765, 4, 7.256413, 9]),
        (5, [0, 0.348901, 1, 1.875, 4, 7.276099, 9]),
    ],
)
def test_splines_go_through_all_points(order, expected):
    """The numbers are those of SciPy 1.17's ``ndimage.zoom``."""
    line = np.array([0.0, 1.0, 4.0, 9.0])
    image = np.stack([line, -line], 1)[None]  # (1, 4, 2)

    resized = io.resize_image(image, (1, 7), order)

    np.testing.assert_allclose(resized[0, :, 0], expected, atol=1e-5)
    np.testing.assert_allclose(resized[0, :, 1], -resized[0, :, 0])


@pytest.mark.parametrize("order", range(6))
def test_smooth_curves_stay_in_the_range_of_the_image(order):
    image = (rng.random((9, 9, 3)) > 0.5).astype(np.float32)

    resized = io.resize_image(image, (20, 5), order)

    assert resized.min() >= 0
    assert resized.max() <= 1


@pytest.mark.parametrize("order", [0, 1, 3])
def test_the_same_size_changes_nothing(order):
    image = rng.random((5, 4, 3))

    np.testing.assert_allclose(io.resize_image(image, (5, 4), order), image, rtol=1e-6)


def test_points_of_whole_numbers_are_rounded():
    image = np.array([0, 3], np.uint8).reshape(1, 2, 1).repeat(2, 2)

    np.testing.assert_array_equal(io.resize_image(image, (1, 3))[0, :, 0], [0, 2, 3])


def test_a_constant_image_stays_constant():
    np.testing.assert_array_equal(
        io.resize_image(np.full((2, 2, 3), 7, np.uint8), np.array([4, 3])), np.full((4, 3, 3), 7)
    )


def test_sizes_that_cannot_be_are_refused():
    with expect_error(ValueError, mentions=["(2, 2)", "(4, 4)"]):
        io.resize_image(np.zeros((2, 2)), (4, 4))
    with expect_error(ValueError, mentions="(0, 4)"):
        io.resize_image(np.zeros((2, 2, 3)), (0, 4))
    with expect_error(ValueError, mentions=["interp_order", "6"]):
        io.resize_image(rng.random((2, 2, 3)), (4, 4), 6)


def test_scripts_find_the_function_of_scikit_image():
    image = rng.integers(0, 256, (6, 9, 3), np.uint8)

    smaller = io.resize(image, (3, 4, 3))

    assert smaller.dtype == np.float64
    np.testing.assert_allclose(smaller, bilinear(image / 255, 3, 4), atol=1e-12)
    np.testing.assert_allclose(io.resize(image[..., 0], (3, 4)), smaller[..., 0])
    np.testing.assert_allclose(io.resize(np.ones((2, 2)), (4, 4))[0, :2], [0.5625, 0.75])
    with expect_error(ValueError, mentions=["(6, 9, 3)", "(3, 4, 1)"]):
        io.resize(image, (3, 4, 1))


IN_SCIPY = {
    "edge": "nearest",
    "symmetric": "reflect",
    "reflect": "mirror",
    "wrap": "grid-wrap",
    "constant": "grid-constant",
}


# beyond the outermost pixels scikit-image cut smooth curves off, which SciPy's do not
AROUND = [(m, order) for m in IN_SCIPY for order in (1, 2, 4, 5) if m != "constant" or order == 1]


@pytest.mark.parametrize(("mode", "order"), AROUND)
@pytest.mark.parametrize("size", [(39, 21), (4, 60)])
def test_what_is_around_an_image_may_be_chosen(mode, order, size):
    ndimage = pytest.importorskip("scipy.ndimage")
    image = rng.random((24, 27))  # what SciPy leaves out of small ones can be seen

    resized = io.resize(image, size, order=order, mode=mode, cval=0.3, clip=False)

    zoom = np.array(size) / image.shape
    want = ndimage.zoom(image, zoom, order=order, mode=IN_SCIPY[mode], cval=0.3, grid_mode=True)
    np.testing.assert_allclose(resized, want, atol=1e-8)


@pytest.mark.parametrize("order", [0, 3])
def test_edges_go_on_around_an_image(order):
    flat = np.full((3, 4), 0.7)

    np.testing.assert_allclose(io.resize(flat, (9, 9), order, mode="edge"), 0.7)


def test_a_mode_that_is_none_is_refused():
    with expect_error(ValueError, mentions=["'nearest'", "constant, edge"]):
        io.resize(np.ones((2, 2)), (4, 4), mode="nearest")


def test_whole_numbers_may_keep_their_range():
    image = rng.integers(0, 256, (6, 9, 3), np.uint8)

    kept = io.resize(image, (3, 4), preserve_range=True)

    np.testing.assert_allclose(kept, 255 * io.resize(image, (3, 4)), atol=1e-10)


def test_smooth_curves_leave_the_range_where_told():
    steps = np.tile([0.0, 0.0, 1.0, 1.0], (4, 1))

    assert io.resize(steps, (4, 16), 3, mode="edge").max() == 1
    assert io.resize(steps, (4, 16), 3, mode="edge", clip=False).max() > 1


def test_scripts_find_scikit_image_where_it_is_installed(monkeypatch):
    installed = types.ModuleType("skimage")
    for name in ("skimage", "skimage.io", "skimage.transform"):
        monkeypatch.setitem(sys.modules, name, installed)

    assert io.skimage is installed


def test_scikit_image_that_is_not_installed_is_told_of(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)

    with expect_error(AttributeError, mentions="pip install scikit-image"):
        io.skimage  # noqa: B018
    with expect_error(AttributeError, mentions="'nothing'"):
        io.nothing  # noqa: B018


def test_messages_are_found_beside_images():
    assert io.caffe_pb2 is caffe_pb2


def test_oversampling_shows_corners_centre_and_mirror_images():
    image = np.arange(5 * 7.0).reshape(5, 7, 1)

    views = io.oversample([image, -image], (3, 4))

    assert views.shape == (20, 3, 4, 1)
    firsts = views[:5, 0, 0, 0]
    np.testing.assert_array_equal(firsts, [0, 3, 14, 17, 8])
    np.testing.assert_array_equal(views[5:10], views[:5, :, ::-1])
    np.testing.assert_array_equal(views[10:], -views[:10])


def test_views_do_not_exceed_the_image():
    with expect_error(ValueError, mentions=["8 x 2", "5 x 7"]):
        io.oversample(np.zeros((1, 5, 7, 1)), np.array([8, 2]))


# -- Transformer ----------------------------------------------------------------------------------


@pytest.fixture
def transformer():
    made = io.Transformer({"data": (10, 3, 4, 5)})
    made.set_transpose("data", (2, 0, 1))
    made.set_channel_swap("data", (2, 1, 0))
    made.set_raw_scale("data", 255)
    made.set_mean("data", [1.0, 2.0, 3.0])
    made.set_input_scale("data", 0.5)
    return made


def test_the_steps_of_preprocessing(transformer):
    image = rng.random((4, 5, 3)).astype(np.float32)
    before = image.copy()

    ready = transformer.preprocess("data", image)

    assert ready.dtype == np.float32
    blue_first = before.transpose(2, 0, 1)[::-1]
    expected = (blue_first * 255 - np.array([1, 2, 3])[:, None, None]) * 0.5
    np.testing.assert_allclose(ready, expected, rtol=1e-5)
    np.testing.assert_array_equal(image, before)  # the caller's image is left alone


def test_images_are_resized_for_the_net(transformer):
    assert transformer.preprocess("data", rng.random((9, 9, 3))).shape == (3, 4, 5)


def test_deprocessing_goes_back(transformer):
    image = rng.random((4, 5, 3)).astype(np.float32)

    back = transformer.deprocess("data", transformer.preprocess("data", image)[None])

    np.testing.assert_allclose(back, image, atol=1e-6)


def test_what_is_not_set_is_not_done():
    plain = io.Transformer({"data": (1, 4, 5, 3)})
    image = rng.random((4, 5, 3)).astype(np.float32)
    plain.inputs = {"data": (1, 3, 4, 5)}

    np.testing.assert_array_equal(plain.preprocess("data", image), image)
    assert plain.mean == plain.transpose == plain.channel_swap == plain.raw_scale == {}


@pytest.mark.parametrize("shape", [(4, 5), (1, 4, 5), (1, 8, 10), (8, 10)])
def test_means_may_be_images(shape):
    grey = io.Transformer({"data": (10, 1, 4, 5)})

    grey.set_mean("data", np.full(shape, 7.0))
    grey.set_transpose("data", (2, 0, 1))

    ready = grey.preprocess("data", np.zeros((4, 5, 1)))
    np.testing.assert_allclose(ready, np.full((1, 4, 5), -7.0))


def test_means_of_another_size_are_resized(transformer):
    mean = rng.random((3, 8, 10)) * 200

    transformer.set_mean("data", mean)

    expected = bilinear(mean.transpose(1, 2, 0), 4, 5).transpose(2, 0, 1)
    np.testing.assert_allclose(transformer.mean["data"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("refused", "code", "mentions"),
    [
        (
            lambda t: t.preprocess("image", np.zeros((4, 5, 3))),
            ErrorCode.UNKNOWN,
            ["'image'", "['data']"],
        ),
        (lambda t: t.set_raw_scale("image", 1), ErrorCode.UNKNOWN, "'image'"),
        (lambda t: t.set_transpose("data", (1, 0)), ErrorCode.COUNT_MISMATCH, ["'data'", "3"]),
        (lambda t: t.set_channel_swap("data", (0, 1)), ErrorCode.COUNT_MISMATCH, ["'data'", "3"]),
    ],
)
def test_what_does_not_fit_the_net_is_refused(transformer, refused, code, mentions):
    with expect_error(Exception, code, mentions=mentions):
        refused(transformer)


@pytest.mark.parametrize("shape", [(2,), (1, 3, 4, 5), (), (2, 4, 5), (4, 9, 9)])
def test_means_that_do_not_fit_are_refused(transformer, shape):
    with expect_error(ValueError, mentions="mean"):
        transformer.set_mean("data", np.zeros(shape))
