"""Images: the channels and values OpenCV would give."""

import builtins
import io
import struct
import zlib

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.images.codecs import (
    IMAGES,
    decode_frames,
    decode_image,
    files_in,
    read_image,
)
from demitasse.io.proto import Datum

Image = pytest.importorskip("PIL.Image", reason="needs the 'image' extra")

RGB = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [10, 20, 30]]], np.uint8)  # (2, 2, 3)
BGR = RGB[:, :, ::-1].transpose(2, 0, 1)

LOSSLESS = {"WEBP": {"lossless": True}}


def encoded(pixels, mode=None, kind="PNG", **options):
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("color", ["native", "color"])
def test_colours_come_in_the_order_blue_green_red(color):
    decoded = decode_image(encoded(RGB), color)

    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, BGR)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_frames_come_one_after_the_other(kind):
    frames = [Image.new("RGB", (4, 2), color) for color in ("red", "lime", "blue")]
    content = encoded(
        frames[0], kind=kind, save_all=True, append_images=frames[1:], **LOSSLESS.get(kind, {})
    )

    found = [frame[:, 0, 0].tolist() for frame in decode_frames(content)]

    assert found == [[0, 0, 255], [0, 255, 0], [255, 0, 0]]


def test_an_image_is_its_only_frame():
    [frame] = decode_frames(encoded(RGB))

    np.testing.assert_array_equal(frame, BGR)


def test_a_page_far_larger_than_its_file_is_refused_before_it_is_decoded():
    pages = [Image.new("1", size) for size in ((4, 4), (20_000, 20_000))]
    content = encoded(
        pages[0], kind="TIFF", save_all=True, append_images=pages[1:], compression="group4"
    )
    frames = decode_frames(content)

    assert next(frames).shape == (3, 4, 4)
    with expect_error(DataError, ErrorCode.UNREADABLE, mentions="20000"):
        next(frames)


def test_gray_is_the_brightness_of_a_colour():
    gray = decode_image(encoded(RGB), "gray")

    assert gray.shape == (1, 2, 2)
    want = 0.299 * RGB[..., 0] + 0.587 * RGB[..., 1] + 0.114 * RGB[..., 2]
    np.testing.assert_allclose(gray[0], want, atol=1)


def test_gray_of_a_jpeg_is_its_own_brightness_channel():
    y, x = np.mgrid[0:32, 0:32].astype(np.uint8) * 8
    jpeg = encoded(np.stack([x, y, 255 - x], axis=-1), kind="JPEG", quality=30)

    with Image.open(io.BytesIO(jpeg)) as image:
        image.draft("YCbCr", image.size)
        brightness = np.asarray(image)[:, :, 0]

    np.testing.assert_array_equal(decode_image(jpeg, "gray")[0], brightness)


@pytest.mark.parametrize(
    ("mode", "channels"),
    [("L", 1), ("1", 1), ("RGB", 3), ("P", 3), ("RGBA", 4), ("LA", 4)],
)
def test_an_image_has_the_channels_of_its_file(mode, channels):
    content = encoded(RGB, mode)

    assert decode_image(content).shape == (channels, 2, 2)
    assert decode_image(content, "color").shape == (3, 2, 2)
    assert decode_image(content, "gray").shape == (1, 2, 2)


def test_alpha_comes_last():
    pixels = np.dstack([RGB, np.full((2, 2), 77, np.uint8)])

    np.testing.assert_array_equal(decode_image(encoded(pixels))[:3], BGR)
    assert (decode_image(encoded(pixels))[3] == 77).all()


def test_an_image_of_sixteen_bits_is_refused_unless_it_may_be_converted():
    content = encoded(np.full((2, 2), 40_000, np.uint16))

    with expect_error(DataError, ErrorCode.UNREADABLE, mentions="8-bit"):
        decode_image(content)


def test_an_image_is_turned_upright_when_its_channels_are_forced():
    image = Image.fromarray(np.zeros((2, 4, 3), np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned
    content = encoded(image, kind="JPEG", exif=exif)

    assert decode_image(content, "color").shape == (3, 4, 2)
    assert decode_image(content).shape == (3, 2, 4)  # as OpenCV's IMREAD_UNCHANGED


@pytest.mark.parametrize("content", [b"", b"no image", encoded(RGB)[:40]])
def test_what_is_no_image_is_refused(content):
    with expect_error(DataError, ErrorCode.UNREADABLE):
        decode_image(content)


def test_a_jpeg_that_is_cut_short_is_refused():
    jpeg = encoded(np.zeros((64, 64, 3), np.uint8) + 9, kind="JPEG")

    with expect_error(DataError, ErrorCode.UNREADABLE):
        decode_image(jpeg[: len(jpeg) // 2])


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    real_import = builtins.__import__

    def no_pillow(name, *args, **options):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", no_pillow)

    with expect_error(
        DataError, ErrorCode.UNAVAILABLE, mentions="'demitasse[image]'", extra="image"
    ):
        decode_image(b"any")


def test_channels_that_there_are_not_are_refused():
    """They gave the file's own channels: ``"rgb"`` gave blue first."""
    with expect_error(ConfigError, ErrorCode.UNKNOWN, mentions=["'rgb'", "color"]):
        decode_image(encoded(RGB), "rgb")


def test_files_are_read_and_named_in_errors(tmp_path):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(encoded(RGB))
    bad.write_bytes(b"?")

    np.testing.assert_array_equal(read_image(good), BGR)
    with expect_error(DataError, ErrorCode.UNREADABLE, mentions="bad.png"):
        read_image(bad)
    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions="none.png"):
        read_image(tmp_path / "none.png")


def test_an_encoded_record_is_decoded():
    datum = Datum(data=encoded(RGB), encoded=True, label=3)

    np.testing.assert_array_equal(datum_to_array(datum), BGR)
    assert datum_to_array(datum, "gray").shape == (1, 2, 2)


def test_no_program_is_started_for_an_image(monkeypatch):
    import subprocess

    def start(*_args, **_options):
        pytest.fail("a program was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"

    with expect_error(DataError, ErrorCode.UNREADABLE):
        decode_image(eps)


def test_an_image_far_larger_than_its_file_is_refused_before_it_is_decoded():
    png = bytearray(encoded(RGB))
    png[16:24] = struct.pack(">II", 9000, 9000)  # width and height
    png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))

    with expect_error(DataError, ErrorCode.UNREADABLE, mentions="9000"):
        decode_image(bytes(png))


def test_images_of_a_folder_are_known_by_their_endings(tmp_path):
    for name in ("b.PNG", "a.jfif", ".c.png", "d.txt"):
        (tmp_path / name).touch()

    assert [path.name for path in files_in(tmp_path, IMAGES)] == ["a.jfif", "b.PNG"]
