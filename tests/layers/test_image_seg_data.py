"""ImageSegData: a class for every pixel."""

import numpy as np
import PIL.Image
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.testing import make_layer

COUNT = 4
CLASSES = 21


@pytest.fixture
def folder(tmp_path):
    """Images of many sizes; the green channel of each pixel says its class."""
    lines = []
    for k in range(COUNT):
        rng = np.random.default_rng(k)
        labels = rng.integers(0, CLASSES, (6 + k, 9 - k)).astype(np.uint8)
        pixels = np.stack([np.full_like(labels, k), labels, labels + 100], -1)
        PIL.Image.fromarray(pixels).save(tmp_path / f"p{k}.png")
        stored = PIL.Image.fromarray(labels)
        if k % 2:
            stored.putpalette([i % 251 for i in range(768)])
        stored.save(tmp_path / f"l{k}.png")
        lines.append(f"p{k}.png l{k}.png\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def open_layer(folder):
    opened = []

    def open_layer(fields="label_type: PIXEL", transform="", tops=3, **options):
        text = (
            'type: "ImageSegData" '
            + "".join(f'top: "{name}" ' for name in ("data", "label", "size")[:tops])
            + f'transform_param {{ {transform} }} image_data_param {{ source: "list.txt" {fields} '
            + f'root_folder: "{folder.as_posix()}/" }}'
        )
        options.setdefault("phase", "TEST")
        opened.append(make_layer(text, base_dir=folder, dtype="float32", **options))
        return opened[-1]

    yield open_layer
    for one in opened:
        one.layer.close()


def test_images_come_with_the_classes_of_their_pixels(open_layer, backend):
    one = open_layer(device=backend)

    for k in (0, 1, 2, 3, 0):
        data, labels, sizes = one.forward()

        assert data.shape == (1, 3, 6 + k, 9 - k)
        assert labels.shape == (1, 1, 6 + k, 9 - k)
        np.testing.assert_array_equal(sizes, [[[[6 + k, 9 - k]]]])
        np.testing.assert_array_equal(data[:, 1:2], labels)
        assert labels.max() < CLASSES


def test_the_sizes_are_not_always_wanted(open_layer):
    assert len(open_layer(tops=2).forward()) == 2


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_both_are_cropped_and_mirrored_alike(open_layer, phase):
    one = open_layer(
        "label_type: PIXEL batch_size: 4 shuffle: true",
        "crop_h: 4 crop_w: 5 mirror: true",
        phase=phase,
    )

    first = one.forward()
    for _ in range(6):
        data, labels, _ = one.forward()

        assert labels.shape == (4, 1, 4, 5)
        np.testing.assert_array_equal(data[:, 1:2], labels)
    assert (first[0] != data).any()


def test_a_small_image_is_filled_up(open_layer):
    transform = "crop_size: 8 mean_value: 3 mean_value: 2 mean_value: 1 scale: 2"

    data, labels, sizes = open_layer(
        "label_type: PIXEL ignore_label: 255 batch_size: 4", transform
    ).forward()

    assert sizes[:, 0, 0].tolist() == [[6, 8], [7, 8], [8, 7], [8, 6]]
    for one, label, (h, w) in zip(data, labels[:, 0], sizes[:, 0, 0].astype(int), strict=True):
        np.testing.assert_array_equal(one[1, :h, :w], (label[:h, :w] - 2) * 2)
        assert (label[h:] == 255).all()
        assert (label[:, w:] == 255).all()
        assert not one[:, h:].any()
        assert not one[:, :, w:].any()


def test_classes_are_not_mixed_by_resizing(open_layer):
    one = open_layer("label_type: PIXEL batch_size: 4 new_height: 17 new_width: 13")

    data, labels, sizes = one.forward()

    assert data.shape == (4, 3, 17, 13)
    assert sizes[:, 0, 0].tolist() == [[17, 13]] * 4
    assert set(np.unique(labels)) <= set(range(CLASSES))


def test_both_are_resized_by_a_factor_drawn_at_random(open_layer):
    one = open_layer(transform="crop_size: 24 scale_factors: 0.5 scale_factors: 1 scale_factors: 2")
    factors = []

    for turn in range(40):
        k = turn % COUNT
        data, labels, sizes = one.forward()
        height, width = sizes[0, 0, 0].astype(int)
        factors.append(next(f for f in (0.5, 1, 2) if height == int((6 + k) * f)))

        assert width == int((9 - k) * factors[-1])
        classes = np.random.default_rng(k).integers(0, CLASSES, (6 + k, 9 - k))
        rows, columns = (np.arange(size) // factors[-1] for size in (height, width))
        shown = classes[rows.astype(int)][:, columns.astype(int)]
        np.testing.assert_array_equal(labels[0, 0, :height, :width], shown)
        assert (data[0, 2, :height, :width] == k).all()

    assert set(factors) == {0.5, 1, 2}


def test_an_image_may_have_one_class_or_none(open_layer, folder):
    (folder / "list.txt").write_text("p0.png 7\np1.png 8\n")

    by_default = open_layer("batch_size: 1")
    none = open_layer("label_type: NONE ignore_label: 9")

    assert np.unique(by_default.forward()[1]).tolist() == [7]
    assert np.unique(by_default.forward()[1]).tolist() == [8]
    assert np.unique(none.forward()[1]).tolist() == [9]


def test_noise_is_for_the_image_alone(open_layer):
    data, labels, _ = open_layer(transform="noise_param { inverse: true }").forward()

    np.testing.assert_array_equal(255 - data[:, 1:2], labels)


def test_a_resumed_run_continues(open_layer):
    fields = "label_type: PIXEL batch_size: 3 shuffle: true"
    transform = "mirror: true crop_size: 5 distort_param { random_order_prob: 0.5 }"
    whole, second = (open_layer(fields, transform, phase="TRAIN") for _ in range(2))
    whole.forward()

    second.layer.set_state(whole.layer.state())

    for _ in range(4):
        for one, other in zip(whole.forward(), second.forward(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("fields", "transform", "code", "mentions"),
    [
        ("batch_size: 0", "", ErrorCode.OUT_OF_RANGE, "image_data_param.batch_size"),
        ("", "scale_factors: 0.5", ErrorCode.OUT_OF_RANGE, "transform_param.scale_factors"),
        (
            "",
            "crop_size: 4 scale_factors: 0",
            ErrorCode.OUT_OF_RANGE,
            "transform_param.scale_factors",
        ),
        ("new_height: 4", "", ErrorCode.CONFLICT, "new_width"),
        ("rand_skip: 2", "", ErrorCode.UNSUPPORTED, "rand_skip"),
        ("", "mean_file: 'm'", ErrorCode.UNSUPPORTED, "mean_file"),
        ("", "resize_param { height: 4 width: 4 }", ErrorCode.UNSUPPORTED, "resize_param"),
        ("", "expand_param { max_expand_ratio: 2 }", ErrorCode.UNSUPPORTED, "expand_param"),
        ("", "crop_h: 4", None, "crop_size"),
    ],
)
def test_what_cannot_be_done_is_refused(open_layer, fields, transform, code, mentions):
    with expect_error(ConfigError, code, mentions=mentions):
        open_layer(fields, transform)


@pytest.mark.parametrize(
    ("line", "mentions"),
    [
        ("p0.png", ["list.txt", "p0.png", "label_type"]),
        ("p0.png l1.png", ["(6, 9)", "l1.png", "(7, 8)"]),
        ("p9.png l1.png", ["list.txt", "p9.png"]),
        ("p0.png l9.png", ["list.txt", "p0.png", "l9.png"]),
    ],
)
def test_lines_that_cannot_be_used_are_named(open_layer, folder, line, mentions):
    (folder / "list.txt").write_text(f"{line}\n")

    with expect_error(DataError, mentions=mentions):
        open_layer()


def test_labels_are_no_images_by_default(open_layer):
    with expect_error(DataError, mentions=["label_type", "PIXEL"]):
        open_layer("")


@pytest.mark.parametrize("label", ["99999999999", "-2147483649", "9" * 400, "1_0", "1.5", "nan"])
def test_a_label_of_an_image_is_an_integer_of_32_bits(open_layer, folder, label):
    (folder / "list.txt").write_text(f"p0.png {label}\n")

    with expect_error(DataError, ErrorCode.INVALID, field="label"):
        open_layer("label_type: IMAGE")


class TestDenseImageData:
    """SegNet's layer of the same task, whose message has other fields."""

    LISTED = 'source: "list.txt" batch_size: 1'

    @pytest.fixture
    def open_layer(self, folder, backend):
        opened = []

        def open_layer(fields=self.LISTED, transform="", phase="TEST"):
            text = (
                'type: "DenseImageData" top: "data" top: "label" '
                f"transform_param {{ {transform} }} "
                f'dense_image_data_param {{ {fields} root_folder: "{folder.as_posix()}/" }}'
            )
            opened.append(
                make_layer(text, base_dir=folder, dtype="float32", phase=phase, device=backend)
            )
            return opened[-1]

        yield open_layer
        for one in opened:
            one.layer.close()

    def test_images_come_with_the_classes_of_their_pixels(self, open_layer):
        one = open_layer()

        for k in (0, 1, 2, 3, 0):
            data, labels = one.forward()

            assert data.shape == (1, 3, 6 + k, 9 - k)
            np.testing.assert_array_equal(data[:, 1:2], labels)

    @pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
    def test_both_are_cropped_and_mirrored_alike(self, open_layer, phase):
        one = open_layer(
            f"{self.LISTED} mirror: true crop_width: 4 crop_height: 3", "mean_value: 2", phase
        )

        for _ in range(8):
            data, labels = one.forward()

            assert labels.shape == (1, 1, 3, 4)
            np.testing.assert_array_equal(data[:, 1:2] + 2, labels)

    @pytest.mark.parametrize(
        ("fields", "code", "mentions"),
        [
            (
                'source: "list.txt"',
                ErrorCode.OUT_OF_RANGE,
                ["dense_image_data_param.batch_size", "0"],
            ),
            ("batch_size: 1", ErrorCode.MISSING, "dense_image_data_param.source"),
            (LISTED + " new_width: 3", ErrorCode.CONFLICT, ["new_height", "new_width"]),
            (LISTED + " crop_width: 3", None, "crop_size"),
            (LISTED + " rand_skip: 1", ErrorCode.UNSUPPORTED, ["rand_skip", "DenseImageData"]),
            (
                LISTED + ' mean_file: "mean"',
                ErrorCode.UNSUPPORTED,
                "dense_image_data_param.mean_file",
            ),
        ],
    )
    def test_what_cannot_be_done_is_refused(self, open_layer, fields, code, mentions):
        with expect_error(ConfigError, code, mentions=mentions):
            open_layer(fields)
