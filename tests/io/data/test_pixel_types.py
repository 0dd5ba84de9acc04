"""Images of every pixel type have OpenCV's 8-bit values, or are refused with the file's name."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demitasse import DataError, Net
from demitasse.cli.run_images import read_images
from demitasse.compat.pycaffe.io import load_image
from demitasse.inference.serving.model import _decoded
from demitasse.io.data.databases.database import open_db
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.images.codecs import read_image
from demitasse.io.data.imageset import ImageSet, convert_imageset
from demitasse.io.proto import Datum

cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")

RNG = np.random.default_rng(1)
H, W = 12, 18
GRAY, GRAY16 = (RNG.integers(0, 1 << bits, (H, W)).astype(f"u{bits // 8}") for bits in (8, 16))
RGB, RGBA = (RNG.integers(0, 256, (H, W, n), dtype=np.uint8) for n in (3, 4))
RGB16 = RNG.integers(0, 1 << 16, (H, W, 3)).astype(np.uint16)
FLOATS = (GRAY16 / 65536).astype(np.float32)


def pnm(magic, most, values):
    """Return a PNM file."""
    return b"%s %d %d %d\n" % (magic, W, H, most) + values.tobytes()


def png(values, kind, *chunks):
    """Return a PNG file of 16 bits."""
    rows = values.astype(">u2").reshape(H, -1)
    header = struct.pack(">IIBBBBB", W, H, 16, kind, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )


def tiff(values, form, photometric=1):
    """Return a TIFF file, with values in their own byte order."""
    order = ">" if values.dtype.byteorder == ">" else "<"
    tags = [
        (256, 4, W), (257, 4, H), (258, 3, values.dtype.itemsize * 8), (259, 3, 1),
        (262, 3, photometric), (273, 4, 134), (277, 3, 1), (278, 4, H), (279, 4, values.nbytes),
        (339, 3, form),
    ]  # fmt: skip
    entries = [
        struct.pack(f"{order}HHI", tag, kind, 1)
        + (struct.pack(f"{order}I", number) if kind == 4 else struct.pack(f"{order}HH", number, 0))
        for tag, kind, number in tags
    ]
    start = b"MM\0*" if order == ">" else b"II*\0"
    counts = struct.pack(f"{order}IH", 8, len(tags))
    return start + counts + b"".join(entries) + b"\0\0\0\0" + values.tobytes()


def saved(image, **options):
    """Return a function that saves an image."""
    return lambda path: image.save(path, **options)


def turned(image, orientation):
    """Return a function that saves an image with an EXIF orientation."""
    exif = Image.Exif()
    exif[274] = orientation
    return saved(image, exif=exif)


READ = {
    "g16.png": saved(Image.fromarray(GRAY16)),
    "g16.tif": saved(Image.fromarray(GRAY16)),
    "g16-lzw.tif": saved(Image.fromarray(GRAY16), compression="tiff_lzw"),
    "g16-big-endian.tif": tiff(GRAY16.astype(">u2"), 1),
    "g16-white-is-zero.tif": tiff(GRAY16.astype("<u2"), 1, photometric=0),
    "g16.pgm": pnm(b"P5", 65535, GRAY16.astype(">u2")),
    "g12.pgm": pnm(b"P5", 4095, (GRAY16 >> 4).astype(">u2")),
    "g100.pgm": pnm(b"P5", 100, GRAY % 101),
    "rgb100.ppm": pnm(b"P6", 100, RGB % 101),
    "rgb16.ppm": pnm(b"P6", 65535, RGB16.astype(">u2")),
    "g16-transparent.png": png(GRAY16, 0, (b"tRNS", struct.pack(">H", int(GRAY16[0, 0])))),
    "ga16.png": png(np.stack([GRAY16, GRAY16[::-1]], 2), 4),
    "rgb16.png": png(RGB16, 2),
    "rgba.tif": saved(Image.fromarray(RGBA)),
    "rgba.png": saved(Image.fromarray(RGBA)),
    "la.tif": saved(Image.merge("LA", [Image.fromarray(GRAY), Image.fromarray(GRAY[::-1])])),
    "la.png": saved(Image.merge("LA", [Image.fromarray(GRAY), Image.fromarray(GRAY[::-1])])),
    "bits.png": saved(Image.fromarray(GRAY > 127)),
    "palette.png": saved(Image.fromarray(RGB).quantize(16)),
    "cmyk.jpg": saved(Image.fromarray(RGBA, "CMYK")),
    "ycbcr.tif": saved(Image.fromarray(RGB, "YCbCr")),
    "rgb.bmp": saved(Image.fromarray(RGB)),
    "rgb.webp": saved(Image.fromarray(RGB), lossless=True),
    **{f"turned{n}.png": turned(Image.fromarray(GRAY16), n) for n in range(1, 9)},
    **{f"turned{n}.jpg": turned(Image.fromarray(RGB), n) for n in (3, 6, 8)},
}
REFUSED = {
    "floats.tif": saved(Image.fromarray(FLOATS)),
    "floats-big-endian.tif": tiff(FLOATS.astype(">f4"), 3),
    "int32.tif": tiff(GRAY16.astype("<i4"), 2),
    "uint32.tif": tiff(GRAY16.astype("<u4"), 1),
    "int16.tif": tiff(GRAY16.view(np.int16), 2),
    "rgb12.ppm": pnm(b"P6", 4095, (RGB16 >> 4).astype(">u2")),
    "floats.pfm": b"Pf\n%d %d\n-1.0\n" % (W, H) + FLOATS.tobytes(),
    "lab.tif": saved(Image.fromarray(RGB, "LAB")),
}


def write(path, content):
    """Write an image file."""
    content(path) if callable(content) else path.write_bytes(content)


@pytest.mark.parametrize(
    ("color", "flag"), [("color", cv2.IMREAD_COLOR), ("gray", cv2.IMREAD_GRAYSCALE)]
)
@pytest.mark.parametrize("name", READ)
def test_pixels_are_opencv_s(tmp_path, name, color, flag):
    write(tmp_path / name, READ[name])
    want = cv2.imread(str(tmp_path / name), flag)

    found = read_image(tmp_path / name, color)

    want = want[None] if want.ndim == 2 else want.transpose(2, 0, 1)
    assert found.shape == want.shape
    assert np.abs(found.astype(int) - want).max() <= (3 if name.endswith(".jpg") else 1)


@pytest.mark.parametrize("color", ["color", "gray", "native"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_such_pixels_is_refused_by_name(tmp_path, name, color):
    write(tmp_path / name, REFUSED[name])

    with pytest.raises(DataError) as caught:
        read_image(tmp_path / name, color)

    assert name in str(caught.value)


@pytest.fixture
def depth(tmp_path, monkeypatch):
    """A folder with an image of 16 bits, and a list of it."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "g16.png", READ["g16.png"])
    write(tmp_path / "floats.tif", REFUSED["floats.tif"])
    (tmp_path / "list.txt").write_text("g16.png 0\n")
    (tmp_path / "floats.txt").write_text("floats.tif 0\n")
    (tmp_path / "windows.txt").write_text(
        f"# 0\ng16.png\n3\n{H}\n{W}\n1\n1 1 0 0 {W - 1} {H - 1}\n"
    )
    return tmp_path


def blob_of(layer):
    """Return the first batch of a data layer."""
    with Net(_net(layer), phase="TEST", device="numpy") as net:
        net.forward()
        return np.array(net.blobs["data"].data)[0]


def _net(layer):
    Path("n.prototxt").write_text(f'layer {{ name: "d" top: "data" top: "label" {layer} }}')
    return "n.prototxt"


def test_every_reader_has_the_high_bytes(depth):
    want = GRAY16 >> 8
    convert_imageset("", Path("list.txt"), Path("db"), ImageSet(gray=True))
    database = open_db("db")
    stored = datum_to_array(Datum.FromString(bytes(database.new_cursor().value())))
    database.close()
    listed = 'type: "ImageData" image_data_param { source: "list.txt" batch_size: 1 %s }'
    (shown,) = read_images(["g16.png"], "gray")

    assert np.array_equal(blob_of(listed % "is_color: false")[0], want)
    assert np.array_equal(blob_of(listed % "")[2], want)
    assert np.array_equal(stored[0], want)
    assert np.array_equal(shown.found[0], want)
    assert np.array_equal(_decoded((depth / "g16.png").read_bytes(), "gray")[0], want)
    assert np.abs(load_image("g16.png", color=False)[:, :, 0] - GRAY16 / 65535).max() < 1e-6


def test_windows_have_the_high_bytes(depth):
    window = (
        'type: "WindowData" window_data_param { source: "windows.txt" batch_size: 1 '
        "fg_fraction: 1 fg_threshold: 0.5 bg_threshold: 0.5 } transform_param { crop_size: 12 }"
    )

    assert abs(float(blob_of(window).mean()) - float((GRAY16 >> 8).mean())) < 8


def test_readers_refuse_floats_by_name(depth):
    listed = 'type: "ImageData" image_data_param { source: "floats.txt" batch_size: 1 }'
    with pytest.raises(DataError) as caught:
        blob_of(listed)

    assert "floats.tif" in str(caught.value)
    with pytest.raises(DataError):
        _decoded((depth / "floats.tif").read_bytes(), "color")
