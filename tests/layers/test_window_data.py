"""WindowData: windows of images, drawn at random."""

import numpy as np
import PIL.Image
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode, ShapeError
from demitasse.io.data.images.crop import WindowCrop, crop_window
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.sources.windows import read_window_file
from demitasse.io.proto import BlobProto, WindowDataParameter, set_floats
from demitasse.testing import make_layer

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 20, 30), dtype=np.uint8)  # blue, green, red

FILE = """
# 0
one.png
3 20 30
3
7 0.9 2 3 11 14
7 0.55 0 0 29 19
7 0.1 5 5 9 9
# 1
one.png
3
20
30
2
9 0.5 12 2 21 11
4 0.49 3 3 4 4
"""


@pytest.fixture
def folder(tmp_path):
    PIL.Image.fromarray(IMAGE[::-1].transpose(1, 2, 0)).save(tmp_path / "one.png")
    (tmp_path / "windows.txt").write_text(FILE)
    return tmp_path


@pytest.fixture
def open_layer(folder):
    opened = []

    def open_layer(
        fields="", transform="crop_size: 10", size=8, source="windows.txt", context=(), **options
    ):
        text = (
            f'type: "WindowData" transform_param {{ {transform} }} window_data_param {{ '
            f'source: "{source}" root_folder: "{folder.as_posix()}/" batch_size: {size} {fields} }}'
        )
        one = make_layer(text, base_dir=folder, dtype="float32", **options)
        for name, value in dict(context).items():
            setattr(one.layer.context, name, value)
        opened.append(one)
        return one

    yield open_layer
    for one in opened:
        one.layer.close()


# -- window files ----------------------------------------------------------------------------------


def test_windows_are_foreground_background_or_neither(folder):
    found = read_window_file(folder / "windows.txt", 0.55, 0.5)

    assert found.channels == 3
    assert [(w.image, w.label, w.box) for w in found.foreground] == [
        ("one.png", 7, (2, 3, 11, 14)),
        ("one.png", 7, (0, 0, 29, 19)),
    ]
    assert [(w.label, w.box) for w in found.background] == [(0, (5, 5, 9, 9)), (0, (3, 3, 4, 4))]


def test_an_overlap_equal_to_a_threshold_of_the_prototxt_reaches_it(folder):
    (folder / "windows.txt").write_text("# 0 one.png 3 20 30 2 7 0.6 0 0 1 1 7 0.3 0 0 1 1")
    p = WindowDataParameter(fg_threshold=0.6, bg_threshold=0.3)  # float32: 0.60000002, 0.30000001

    found = read_window_file(folder / "windows.txt", p.fg_threshold, p.bg_threshold)

    assert [len(found.foreground), len(found.background)] == [1, 0]


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("", "w.txt"),
        ("1 a.png 3 2 2 0", "# index"),
        ("# 4 a.png 3 2 2 1 7 0.9 1 1", "4"),
        ("# 4 a.png 3 2", "4"),
        ("# 4 a.png x 2 2 0", "4"),
        ("# 4 a.png 3 2 2 1 0 0.9 0 0 1 1", ["4", "0"]),
    ],
)
def test_refuses_files_of_another_form(text, mentions, tmp_path):
    (tmp_path / "w.txt").write_text(text)

    with expect_error(DataError, mentions=mentions):
        read_window_file(tmp_path / "w.txt", 0.5, 0.5)


@pytest.mark.parametrize("text", ["secret", "# secret", "# 1 a.png 3 2 2 0 secret"])
def test_does_not_quote_a_file_of_another_form(text, tmp_path):
    (tmp_path / "w.txt").write_text(text)

    with pytest.raises(DataError) as caught:
        read_window_file(tmp_path / "w.txt", 0.5, 0.5)

    assert "secret" not in str(caught.value)


def test_refuses_a_file_that_is_not_there(tmp_path):
    with expect_error(DataError, mentions="w.txt"):
        read_window_file(tmp_path / "w.txt", 0.5, 0.5)


# -- cutting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirror", [False, True])
def test_a_window_is_warped_to_the_size(mirror):
    part, above, beside = crop_window(IMAGE, (2, 3, 11, 14), WindowCrop(10), mirror=mirror)

    want = resize_image(IMAGE[:, 3:15, 2:12], 10, 10)
    np.testing.assert_array_equal(part, want[:, :, ::-1] if mirror else want)
    assert (above, beside) == (0, 0)


def test_a_square_is_as_wide_as_the_longer_side():
    part, *_ = crop_window(IMAGE, (10, 4, 13, 13), WindowCrop(11, square=True), mirror=False)

    np.testing.assert_array_equal(part, IMAGE[:, 4:15, 7:18])


def test_context_comes_along_and_the_window_keeps_its_size():
    part, *_ = crop_window(IMAGE, (10, 6, 15, 11), WindowCrop(11, context_pad=2), mirror=False)

    # 6 pixels become 7 and 2 more on each side: 6 * 11 / 7 = 9.4 pixels around (13, 9)
    want = resize_image(IMAGE[:, 4:15, 8:19], 11, 11)
    np.testing.assert_array_equal(part, want)


@pytest.mark.parametrize(("mirror", "beside"), [(False, 3), (True, 0)])
def test_what_lies_outside_of_the_image_is_left_out(mirror, beside):
    part, above, left = crop_window(
        IMAGE, (0, 0, 7, 7), WindowCrop(14, context_pad=3), mirror=mirror
    )

    assert above == 3
    assert left == beside
    assert part.shape == (3, 11, 11)


@pytest.mark.parametrize("box", [(25, 0, 30, 5), (-1, 0, 5, 5), (5, 5, 4, 9), (0, 15, 3, 20)])
def test_refuses_a_window_outside_of_its_image(box):
    with expect_error(DataError, mentions=["30", "20"]):
        crop_window(IMAGE, box, WindowCrop(10), mirror=False)


def test_refuses_a_window_whose_context_misses_the_image():
    with expect_error(DataError, mentions="(100, 100, 110, 110)"):
        crop_window(IMAGE, (100, 100, 110, 110), WindowCrop(10, context_pad=2), mirror=False)


# -- the layer -------------------------------------------------------------------------------------


def test_a_batch_is_background_then_foreground(open_layer, backend):
    one = open_layer("fg_fraction: 0.25", device=backend)
    assert [blob.shape for blob in one.top] == [(8, 3, 10, 10), (8,)]

    labels = [one.forward()[1].tolist() for _ in range(8)]

    assert all(batch[:6] == [0] * 6 for batch in labels)
    assert {label for batch in labels for label in batch[6:]} == {7, 9}


def test_the_number_of_foreground_windows_is_rounded_as_caffe_does(open_layer):
    [_, label] = open_layer("fg_fraction: 0.7", size=10).forward()

    assert (label > 0).sum() == 7


def test_pixels_are_those_of_the_window(open_layer):
    one = open_layer("fg_fraction: 1 fg_threshold: 0.8", size=2)

    [data, label] = one.forward()

    want = resize_image(IMAGE[:, 3:15, 2:12], 10, 10)
    np.testing.assert_array_equal(label, [7, 7])
    for window in data:
        np.testing.assert_array_equal(window, want)


def test_around_the_image_is_0_whatever_the_mean(open_layer, folder):
    (folder / "windows.txt").write_text("# 0 one.png 3 20 30 1 7 0.9 0 0 7 7")
    one = open_layer(
        "fg_fraction: 1 context_pad: 3 crop_mode: 'square'",
        "crop_size: 14 mean_value: 20 scale: 0.5",
        size=1,
    )

    [data, _] = one.forward()

    part, above, left = crop_window(
        IMAGE, (0, 0, 7, 7), WindowCrop(14, 3, square=True), mirror=False
    )
    assert (data[0, :, :above] == 0).all()
    assert (data[0, :, :, :left] == 0).all()
    np.testing.assert_array_equal(data[0, :, above:, left:], (part - 20.0) / 2)


def test_the_middle_of_a_mean_file_is_subtracted(open_layer, folder):
    mean = np.arange(3 * 12 * 12, dtype="float32").reshape(3, 12, 12)
    proto = BlobProto(num=1, channels=3, height=12, width=12)
    set_floats(proto, mean.ravel())
    (folder / "mean.binaryproto").write_bytes(proto.SerializeToString())
    one = open_layer(
        "fg_fraction: 1 fg_threshold: 0.8",
        'crop_size: 10 mean_file: "mean.binaryproto"',
        size=1,
    )

    [data, _] = one.forward()

    want = resize_image(IMAGE[:, 3:15, 2:12], 10, 10) - mean[:, 1:11, 1:11]
    np.testing.assert_array_equal(data[0], want)


def test_about_half_of_the_windows_are_mirrored(open_layer):
    one = open_layer(
        "fg_fraction: 1 fg_threshold: 0.8 cache_images: true",
        "crop_size: 10 mirror: true",
        size=40,
    )
    want = resize_image(IMAGE[:, 3:15, 2:12], 10, 10).astype("float32")

    [data, _] = one.forward()

    mirrored = [np.array_equal(window, want[:, :, ::-1]) for window in data]
    plain = [np.array_equal(window, want) for window in data]
    assert sum(mirrored) + sum(plain) == 40
    assert 5 < sum(mirrored) < 35


def test_reading_goes_on_where_a_snapshot_was_taken(open_layer):
    one, other = open_layer(), open_layer()
    for _ in range(3):
        one.forward()

    other.layer.set_state(one.layer.state())

    for got, want in zip(other.forward(), one.forward(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_ranks_draw_other_windows_in_train(open_layer):
    first, second = (
        open_layer("fg_fraction: 1", size=20, context={"rank": rank, "world_size": 2}).forward()[1]
        for rank in range(2)
    )

    assert (first != second).any()


@pytest.mark.parametrize(
    ("fields", "transform", "error", "code", "mentions"),
    [
        ("", "", ConfigError, ErrorCode.OUT_OF_RANGE, "transform_param.crop_size"),
        (
            "crop_mode: 'round'",
            "crop_size: 10",
            ConfigError,
            ErrorCode.UNKNOWN,
            ["window_data_param.crop_mode", "round"],
        ),
        (
            "context_pad: 5",
            "crop_size: 10",
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            "window_data_param.context_pad",
        ),
        ("fg_threshold: 2 bg_threshold: 0.2", "crop_size: 10", DataError, None, "2"),
        ("bg_threshold: 0", "crop_size: 10", DataError, None, "6"),
        ("", "crop_size: 10 mean_value: 1 mean_value: 2", ShapeError, None, ["2", "3"]),
        (
            "",
            "crop_size: 10 mean_value: 1 mean_file: 'm'",
            ConfigError,
            None,
            ["mean_file", "mean_value"],
        ),
        (
            "",
            "crop_size: 10 noise_param { inverse: true }",
            ConfigError,
            ErrorCode.UNSUPPORTED,
            "noise_param",
        ),
        (
            "",
            "crop_size: 10 crop_h: 4 crop_w: 4",
            ConfigError,
            ErrorCode.UNSUPPORTED,
            ["crop_h", "crop_w"],
        ),
    ],
)
def test_refuses_what_cannot_be(fields, transform, error, code, mentions, open_layer):
    with expect_error(error, code, mentions=mentions):
        open_layer(fields, transform)


def test_refuses_a_missing_source_or_batch_size(open_layer):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="window_data_param.batch_size"):
        open_layer(size=0)
    with expect_error(ConfigError, ErrorCode.MISSING, field="window_data_param.source"):
        open_layer(source="")
    with expect_error(DataError, mentions="lost"):
        open_layer(source="lost")


def test_refuses_a_mean_that_is_smaller_than_a_window(open_layer, folder):
    proto = BlobProto(num=1, channels=3, height=8, width=8)
    set_floats(proto, np.zeros(3 * 8 * 8, "float32"))
    (folder / "mean.binaryproto").write_bytes(proto.SerializeToString())

    with expect_error(ShapeError, mentions=["(3, 8, 8)", "(3, 10, 10)"]):
        open_layer("", 'crop_size: 10 mean_file: "mean.binaryproto"')


def test_names_an_image_that_cannot_be_read(open_layer, folder):
    (folder / "windows.txt").write_text(FILE.replace("one.png", "lost.png"))
    one = open_layer()

    with expect_error(DataError, mentions=["windows.txt", f"{folder.as_posix()}/lost.png"]):
        one.forward()


def test_names_an_image_of_another_number_of_channels(open_layer, folder):
    (folder / "windows.txt").write_text("# 0 one.png 1 20 30 1 7 0.9 0 0 7 7")
    one = open_layer("fg_fraction: 1")

    with expect_error(DataError, mentions=["one.png", "3", "1"]):
        one.forward()
