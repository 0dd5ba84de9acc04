"""ImageData: the images of a list."""

import numpy as np
import PIL.Image
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.testing import make_layer

COUNT = 5


def image(number, size=(6, 8)):
    """An image that is flat in each channel: blue, green, red are number, 100, 200."""
    pixels = np.empty((*size, 3), np.uint8)
    pixels[...] = (200, 100, number)
    return PIL.Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path):
    """BottomKind p0.png to p4.png; the blue channel of image k is k, its label 10 k."""
    for k in range(COUNT):
        image(k).save(tmp_path / f"p{k}.png")
    (tmp_path / "list.txt").write_text("".join(f"p{k}.png {10 * k}\n" for k in range(COUNT)))
    return tmp_path


@pytest.fixture
def open_layer(folder):
    opened = []

    def open_layer(fields="", transform="", context=(), **options):
        text = (
            f'type: "ImageData" transform_param {{ {transform} }} '
            f'image_data_param {{ source: "list.txt" root_folder: "{folder.as_posix()}/" '
            f"{fields} }}"
        )
        one = make_layer(text, base_dir=folder, dtype="float32", **options)
        for name, value in dict(context).items():
            setattr(one.layer.context, name, value)
        opened.append(one)
        return one

    yield open_layer
    for one in opened:
        one.layer.close()


def labels(one, times=1):
    return [one.forward()[1].tolist() for _ in range(times)]


def test_batches_come_in_order_and_begin_again(open_layer, backend):
    one = open_layer("batch_size: 2", device=backend)
    assert [blob.shape for blob in one.top] == [(2, 3, 6, 8), (2,)]

    for k in ([0, 1], [2, 3], [4, 0], [1, 2]):
        data, label = one.forward()

        np.testing.assert_array_equal(label, 10 * np.array(k))
        for image_, number in zip(data, k, strict=True):
            np.testing.assert_array_equal(image_[:, 0, 0], [number, 100, 200])


def test_the_batch_size_is_1_by_default(open_layer):
    assert open_layer().top[0].shape == (1, 3, 6, 8)


def test_images_can_be_gray_resized_and_transformed(open_layer):
    one = open_layer(
        "batch_size: 2 is_color: false new_height: 10 new_width: 12",
        "crop_size: 9 mean_value: 100 scale: 0.5",
        phase="TEST",
    )

    [data, _] = one.forward()

    gray = np.array(image(0).convert("L"))[0, 0]
    assert data.shape == (2, 1, 9, 9)
    np.testing.assert_allclose(data[0], (int(gray) - 100) / 2)


def test_a_list_in_the_folder_of_the_prototxt_is_found(folder):
    (folder / "net.prototxt").write_text(
        'layer { name: "d" type: "ImageData" top: "data" top: "label" '
        'image_data_param { source: "list.txt" batch_size: 5 } }'
    )
    net = Net(folder / "net.prototxt", "TEST")

    net.forward()

    np.testing.assert_array_equal(net.blobs["label"].data, [0, 10, 20, 30, 40])
    net.close()


def test_names_may_hold_spaces(open_layer, folder):
    image(7).save(folder / "an image 3.png")
    (folder / "list.txt").write_text("an image 3.png 6\n")

    [data, label] = open_layer().forward()

    assert data[0, 0, 0, 0] == 7
    assert label == [6]


def test_names_may_begin_with_spaces_and_lines_may_be_indented(open_layer, folder):
    image(7).save(folder / " first.png")
    (folder / "list.txt").write_text(" first.png 6\n  p3.png 5\n")

    [data, label] = open_layer("batch_size: 2").forward()

    assert data[:, 0, 0, 0].tolist() == [7, 3]
    assert label.tolist() == [6, 5]


def test_a_list_may_begin_with_a_byte_order_mark(open_layer, folder):
    (folder / "list.txt").write_text("p3.png 7\np4.png 8\n", encoding="utf-8-sig")

    assert labels(open_layer("batch_size: 2")) == [[7, 8]]


def test_a_list_in_utf_16_is_told_from_binary_files(open_layer, folder):
    (folder / "list.txt").write_bytes(b"\xff\xfe" + "p3.png 7\n".encode("utf-16-le"))

    with expect_error(DataError, ErrorCode.INVALID, mentions=["UTF-16", "UTF-8"]):
        open_layer()


def test_several_labels_make_rows(open_layer, folder):
    (folder / "list.txt").write_text("p0.png 1 0 2.5\np1.png 0 -1 0\n\n")

    [_, label] = open_layer("batch_size: 2").forward()

    np.testing.assert_array_equal(label, [[1, 0, 2.5], [0, -1, 0]])


def test_several_labels_are_counted_although_the_first_image_is_missing(open_layer, folder):
    (folder / "list.txt").write_text("none.png 1 2\np1.png 3 4\n")

    assert open_layer('on_error: "skip"').forward()[1].tolist() == [[3, 4]]


@pytest.mark.parametrize(("text", "want"), [("0.75", 0.75), ("3x", 3), ("-2", -2), ("x", 0)])
def test_a_label_is_a_number_or_begins_with_one(text, want, open_layer, folder):
    (folder / "list.txt").write_text(f"p0.png {text}\n")

    assert labels(open_layer()) == [[want]]


@pytest.mark.parametrize("label", ["nan", "-inf", "1e400", "9" * 400])
def test_a_label_that_is_not_finite_is_refused(label, open_layer, folder):
    (folder / "list.txt").write_text(f"p0.png 1\np1.png {label}\n")

    with expect_error(DataError, ErrorCode.NOT_FINITE, field="label", mentions="p1.png"):
        open_layer()


def test_an_image_without_a_label_has_label_0(open_layer, folder):
    (folder / "list.txt").write_text("p0.png\n")

    assert labels(open_layer()) == [[0]]


def test_shuffled_every_round_shows_all_in_another_order(open_layer):
    one = open_layer(f"batch_size: {COUNT} shuffle: true")

    rounds = [tuple(batch) for batch in labels(one, 6)]

    assert all(sorted(batch) == [0, 10, 20, 30, 40] for batch in rounds)
    assert len(set(rounds)) > 1


@pytest.mark.parametrize("shuffle", ["false", "true"])
def test_reading_goes_on_where_a_snapshot_was_taken(open_layer, shuffle):
    fields = f"batch_size: 2 shuffle: {shuffle} rand_skip: 3"
    one, other = open_layer(fields), open_layer(fields)
    labels(one, 4)

    other.layer.set_state(one.layer.state())

    assert labels(other, 5) == labels(one, 5)


def test_rand_skip_leaves_out_the_first_in_the_first_round_only(open_layer):
    for seed in range(20):
        one = open_layer("batch_size: 1 rand_skip: 3", seed=seed)
        first = labels(one, 1 + COUNT)
        skipped = int(first[0][0]) // 10

        assert skipped < 3
        assert first == [[10 * ((skipped + k) % COUNT)] for k in range(1 + COUNT)]


def test_ranks_share_the_images_in_train_and_not_in_test(open_layer):
    for phase, want in (("TRAIN", [[10, 30], [0, 20]]), ("TEST", [[0, 10], [20, 30]])):
        one = open_layer("batch_size: 2", phase=phase, context={"rank": 1, "world_size": 2})

        assert labels(one, 2) == want


# -- what is refused -------------------------------------------------------------------------------


def test_refuses_one_of_height_and_width(open_layer):
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="new_width"):
        open_layer("new_height: 10")


def test_refuses_a_batch_size_of_0(open_layer):
    field = "image_data_param.batch_size"
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field=field, mentions="is 0"):
        open_layer("batch_size: 0")


def test_refuses_a_missing_source():
    with expect_error(ConfigError, ErrorCode.MISSING, field="image_data_param.source"):
        make_layer('type: "ImageData"')


def test_refuses_a_list_that_is_not_there(tmp_path):
    with expect_error(DataError, mentions="nowhere.txt"):
        make_layer(
            'type: "ImageData" image_data_param { source: "nowhere.txt" }', base_dir=tmp_path
        )


def test_refuses_an_empty_list(open_layer, folder):
    (folder / "list.txt").write_text("\n\n")

    with expect_error(DataError, mentions="list.txt"):
        open_layer()


def test_refuses_lines_with_fewer_labels(open_layer, folder):
    (folder / "list.txt").write_text("p0.png 1 2 3\np1.png 1\n")

    with expect_error(DataError, mentions=["p1.png 1", "3"]):
        open_layer()


def test_refuses_to_skip_more_than_there_is(open_layer):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="image_data_param.rand_skip"):
        open_layer("rand_skip: 1000000")


def test_names_an_image_that_is_not_there(open_layer, folder):
    (folder / "list.txt").write_text("p0.png 0\nlost.png 1\n")
    one = open_layer("batch_size: 2")

    with expect_error(DataError, mentions=["list.txt", "lost.png", f"{folder.as_posix()}/lost"]):
        one.forward()


@pytest.mark.parametrize("line", ["root:$6$secret:1:0:99:7:::", "password = secret", "secret 5"])
def test_does_not_quote_a_file_that_is_no_list_of_images(open_layer, folder, line):
    (folder / "list.txt").write_text(f"{line}\np0.png 0\n")

    with expect_error(DataError, mentions=["list.txt", "number 1"]) as caught:
        open_layer()

    assert "secret" not in str(caught.value)


def test_names_a_first_image_that_is_not_one(open_layer, folder):
    (folder / "list.txt").write_text("list.txt 0\n")

    with expect_error(DataError, mentions="list.txt"):
        open_layer()


def test_names_an_image_of_another_size_than_the_first_of_its_batch(open_layer, folder):
    image(0, (9, 9)).save(folder / "p1.png")
    one = open_layer("batch_size: 2")

    with expect_error(DataError, mentions=["p1.png", "3", "9", "6", "8"]):
        one.forward()


def test_a_batch_may_have_another_size_than_the_one_before(open_layer, folder):
    image(0, (9, 9)).save(folder / "p1.png")
    one = open_layer("batch_size: 1")

    shapes = [one.forward()[0].shape for _ in range(3)]

    assert shapes == [(1, 3, 6, 8), (1, 3, 9, 9), (1, 3, 6, 8)]
