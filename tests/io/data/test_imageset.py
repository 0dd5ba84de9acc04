"""Databases of image files: options of convert_imageset, and conversions that are interrupted."""

import shutil
import sys
from contextlib import closing

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import array_to_datum, datum_to_array
from demitasse.io.data.databases.writing import Records, new_database, resumable_database
from demitasse.io.data.images.codecs import read_image
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.imageset import Annotations, ImageSet, convert_imageset, read_lines
from demitasse.io.proto import Datum

Image = pytest.importorskip("PIL.Image")


def contents(path, backend="LMDB"):
    """Keys and records of a database."""
    with closing(open_db(path, backend)) as database, closing(database.new_cursor()) as cursor:
        return {key: Datum.FromString(bytes(value)) for key, value in records(cursor)}


@pytest.fixture
def photos(tmp_path):
    """A folder with images of several kinds, and a list of them."""
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    random = np.random.default_rng(3)
    names = ["a.png", "b b.png", "sub/c.jpeg", "d.jpg", "e.PNG"]
    for index, name in enumerate(names):
        pixels = random.integers(0, 256, (9 + index, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    lines = [f"{name} {label}\n" for label, name in enumerate(names)]
    (tmp_path / "list.txt").write_text("".join(lines))
    return folder


def convert(photos, how=None, name="db", **options):
    out = photos.parent / name
    source = photos.parent / "list.txt"
    return convert_imageset(f"{photos}/", source, out, how, **options), out


@pytest.mark.parametrize("kind", ["LMDB", "LEVELDB"])
def test_images_become_records(photos, kind):
    done, out = convert(photos, backend=kind)

    found = contents(out, kind)
    assert done == (5, 0)
    assert list(found) == [
        b"00000000_a.png",
        b"00000001_b b.png",
        b"00000002_sub/c.jpeg",
        b"00000003_d.jpg",
        b"00000004_e.PNG",
    ]
    assert [datum.label for datum in found.values()] == [0, 1, 2, 3, 4]
    for key, datum in found.items():
        expected = read_image(photos / key.decode().partition("_")[2], "color")
        assert (datum_to_array(datum) == expected).all()
        assert not datum.encoded


def test_the_root_is_put_before_names_as_it_is(photos):
    convert_imageset(f"{photos}/s", _list(photos, "ub/c.jpeg 7"), photos.parent / "db")

    assert list(contents(photos.parent / "db")) == [b"00000000_ub/c.jpeg"]


def _list(photos, *lines):
    source = photos.parent / "other.txt"
    source.write_text("\n".join(lines) + "\n")
    return source


def test_gray_and_resized(photos):
    _, out = convert(photos, ImageSet(gray=True, resize_height=5, resize_width=7))

    first = contents(out)[b"00000000_a.png"]
    expected = resize_image(read_image(photos / "a.png", "gray"), 5, 7)
    assert (first.channels, first.height, first.width) == (1, 5, 7)
    assert (datum_to_array(first) == expected).all()


def test_one_size_alone_changes_none(photos):
    _, out = convert(photos, ImageSet(resize_height=5))

    assert [d.height for d in contents(out).values()] == [9, 10, 11, 12, 13]


def test_encoded_images_are_the_files_as_they_are(photos):
    _, out = convert(photos, ImageSet(encoded=True))

    found = contents(out)
    assert found[b"00000002_sub/c.jpeg"].data == (photos / "sub/c.jpeg").read_bytes()
    assert all(d.encoded and not d.HasField("channels") for d in found.values())


def test_encoding_in_a_format_leaves_files_of_that_format_alone(photos):
    _, out = convert(photos, ImageSet(encode_type="jpg"))

    found = contents(out)
    assert found[b"00000002_sub/c.jpeg"].data == (photos / "sub/c.jpeg").read_bytes()
    assert found[b"00000000_a.png"].data[:3] == b"\xff\xd8\xff"


def test_a_format_without_loss_keeps_the_pixels(photos):
    _, out = convert(photos, ImageSet(encode_type="png", resize_height=4, resize_width=4))

    expected = resize_image(read_image(photos / "d.jpg", "color"), 4, 4)
    assert (datum_to_array(contents(out)[b"00000003_d.jpg"], "color") == expected).all()


def test_a_format_that_there_is_not(photos):
    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="encode_type"):
        convert(photos, ImageSet(encode_type="xyz"))


def test_a_seed_says_in_which_order(photos):
    orders = [
        list(contents(convert(photos, ImageSet(shuffle=True, seed=seed), f"db{n}")[1]))
        for n, seed in enumerate([1, 1, 3])
    ]

    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(key.partition(b"_")[2] for key in orders[2]) == sorted(
        key.partition(b"_")[2] for key in orders[0]
    )


def test_sizes_are_checked_when_told(photos):
    with expect_error(DataError, ErrorCode.COUNT_MISMATCH, mentions=["b.png", "360", "324"]):
        convert(photos, ImageSet(check_size=True))

    done, _ = convert(photos, ImageSet(check_size=True, resize_height=3, resize_width=3))
    assert done.written == 5


def test_what_cannot_be_read_is_left_out_and_keeps_its_number(photos, caplog):
    (photos / "b b.png").write_bytes(b"no image")
    (photos / "d.jpg").unlink()

    done, out = convert(photos)

    assert done == (3, 2)
    assert [key[:8] for key in contents(out)] == [b"00000000", b"00000002", b"00000004"]
    skipped = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert ["b b.png" in skipped[0], "d.jpg" in skipped[1]] == [True, True]


def test_what_cannot_be_read_is_an_error_when_told(photos):
    (photos / "d.jpg").unlink()

    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions="d.jpg"):
        convert(photos, skip=False)

    assert not (photos.parent / "db").exists()


def test_a_wrong_folder_is_an_error_and_no_empty_database(photos):
    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions="5"):
        convert_imageset("nowhere/", photos.parent / "list.txt", photos.parent / "db")

    assert not (photos.parent / "db").exists()


def test_lines_are_read_as_caffe_reads_them(tmp_path):
    source = tmp_path / "list.txt"
    source.write_bytes(b"a.png 3\r\nb c.png -1\n\nd.png 12x\nalone\nn\xe9.png 1\n")

    assert [line[:2] for line in read_lines(source)] == [
        ("a.png", 3),
        ("b c.png", -1),
        ("", 0),
        ("d.png", 12),
        ("alone", 0),
        ("n\udce9.png", 1),
    ]


def test_labels_that_are_names_are_warned_of(tmp_path, caplog):
    source = tmp_path / "list.txt"
    source.write_text("a.png cat\nb.png dog\nc.png 2\nalone.png\n")

    labels = [line.label for line in read_lines(source)]

    assert labels == [0, 0, 2, 0]
    [warning] = caplog.messages
    assert "2 labels that are no numbers, such as 'cat'" in warning


@pytest.mark.parametrize("content", [None, ""])
def test_a_list_that_is_missing_or_empty(tmp_path, content):
    if content is not None:
        (tmp_path / "list.txt").write_text(content)

    code = ErrorCode.NOT_FOUND if content is None else ErrorCode.MISSING
    with expect_error(DataError, code, mentions="list.txt"):
        read_lines(tmp_path / "list.txt")


# -- interruptions -----------------------------------------------------------------------------


class Interruption(BaseException):
    pass


@pytest.fixture
def many(photos, monkeypatch):
    """The list, 20 times over; records are committed three at a time."""
    monkeypatch.setattr("demitasse.io.data.databases.writing.COMMIT_EVERY", 3)
    source = photos.parent / "list.txt"
    source.write_text(source.read_text() * 20)
    return photos


def interrupt(at):
    def progress(done, total):
        if done == at:
            raise Interruption

    return progress


@pytest.mark.parametrize("kind", ["LMDB", "LEVELDB"])
@pytest.mark.parametrize("at", [1, 31, 60, 100])
def test_an_interrupted_conversion_goes_on_and_ends_as_if_it_had_not_been(many, kind, at):
    how = ImageSet(shuffle=True, check_size=True, resize_height=4, resize_width=4)
    _, whole = convert(many, how, "whole", backend=kind)

    with pytest.raises(Interruption):
        convert(many, how, backend=kind, progress=interrupt(at))
    assert not (many.parent / "db").exists()
    done, out = convert(many, how, backend=kind, resume=True)

    assert done.written == 100 - at // 3 * 3
    assert contents(out, kind) == contents(whole, kind)
    assert not list(many.parent.glob(".*"))


def test_without_resume_it_begins_anew(many):
    with pytest.raises(Interruption):
        convert(many, progress=interrupt(50))

    done, out = convert(many)

    assert done.written == len(contents(out)) == 100


def test_going_on_otherwise_than_begun_is_refused(many):
    with pytest.raises(Interruption):
        convert(many, progress=interrupt(50))

    with expect_error(DataError, ErrorCode.INCOMPATIBLE, field="gray, backend"):
        convert(many, ImageSet(gray=True), backend="LEVELDB", resume=True)


def test_going_on_with_another_list_is_refused(many):
    with pytest.raises(Interruption):
        convert(many, progress=interrupt(50))
    (many.parent / "list.txt").write_text("a.png 9\n")

    with expect_error(DataError, ErrorCode.INCOMPATIBLE, field="list"):
        convert(many, resume=True)


def test_with_nothing_to_go_on_with_it_begins(photos):
    done, _ = convert(photos, resume=True)

    assert done.written == 5


def test_a_database_that_is_there_is_kept_or_replaced(photos):
    convert(photos)

    with expect_error(DataError, ErrorCode.EXISTS):
        convert(photos, ImageSet(gray=True))
    assert convert(photos, ImageSet(gray=True), overwrite=True)[0].written == 5


def test_a_full_disk_is_told_and_leaves_no_database(photos, monkeypatch):
    monkeypatch.setattr("demitasse.io.data.databases.lmdb.LmdbTransaction.commit", _full)
    with expect_error(OSError, mentions="Errno 28"):
        convert(photos)

    assert not (photos.parent / "db").exists()


def _full(self):
    raise OSError(28, "No space left on device")


# -- recorded ----------------------------------------------------------------------------------

RECORDED = {
    "raw64_lmdb": ImageSet(resize_height=64, resize_width=64),
    "jpg128_lmdb": ImageSet(resize_height=128, resize_width=128, encoded=True),
    "gray32_leveldb": ImageSet(resize_height=32, resize_width=32, gray=True),
}


@needs("links")
@pytest.mark.parametrize("name", RECORDED)
def test_keys_and_datums_are_those_of_caffe(reference_data, tmp_path, name):
    source = reference_data / "data" / "hymenoptera_train.txt"
    (tmp_path / "train").symlink_to(reference_data / "data" / "hymenoptera_train")
    shutil.copytree(reference_data / "caffe_made" / f"hymen_train_{name}", tmp_path / "caffe")
    backend = name.rpartition("_")[2].upper()

    convert_imageset(f"{tmp_path}/", source, tmp_path / "ours", RECORDED[name], backend=backend)

    ours, theirs = contents(tmp_path / "ours", backend), contents(tmp_path / "caffe", backend)
    assert list(ours) == list(theirs)
    assert [d.label for d in ours.values()] == [d.label for d in theirs.values()]
    for one, other in zip(ours.values(), theirs.values(), strict=True):
        difference = datum_to_array(one).astype(int) - datum_to_array(other)
        assert abs(difference).max() <= (4 if one.encoded else 2)  # of another JPEG decoder


def add_a_record(folder, **options):
    with resumable_database(folder / "db", "LMDB", {"size": 1}, **options) as database:
        records = Records(database)
        records.add(b"0", array_to_datum(np.zeros((1, 2, 2), np.uint8), 0))
        records.commit()


@pytest.mark.parametrize("name", ["a.jpg", "database/a.jpg", "sub/settings.json"])
def test_a_folder_of_the_user_is_not_taken_for_an_interrupted_database(tmp_path, name):
    file = tmp_path / ".db.partial" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"mine")

    for resume in (False, True):
        with expect_error(DataError, code=ErrorCode.EXISTS, mentions=".db.partial"):
            add_a_record(tmp_path, resume=resume)

    assert file.read_bytes() == b"mine"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("make", [resumable_database, new_database])
def test_files_that_come_to_the_place_meanwhile_stay(tmp_path, make, overwrite):
    if overwrite:
        add_a_record(tmp_path)
    options = {"settings": {}} if make is resumable_database else {}

    def write():
        with make(tmp_path / "db", backend="LMDB", overwrite=overwrite, **options):
            (tmp_path / "db").mkdir(exist_ok=True)
            (tmp_path / "db" / "a.jpg").write_bytes(b"mine")

    with expect_error(DataError, code=ErrorCode.EXISTS):
        write()

    assert (tmp_path / "db" / "a.jpg").read_bytes() == b"mine"


@needs("locks")
def test_a_database_that_a_living_process_writes_is_left_alone(tmp_path):
    with resumable_database(tmp_path / "db", "LMDB", {"size": 1}):
        for resume in (False, True):
            with expect_error(DataError, code=ErrorCode.IN_USE):
                add_a_record(tmp_path, resume=resume)

    add_a_record(tmp_path, overwrite=True)


@needs("modes")
def test_a_private_database_stays_private(tmp_path):
    add_a_record(tmp_path)
    (tmp_path / "db").chmod(0o700)
    for file in (tmp_path / "db").iterdir():
        file.chmod(0o600)

    with resumable_database(tmp_path / "db", "LMDB", {"size": 1}, overwrite=True):
        assert (tmp_path / ".db.partial").stat().st_mode & 0o077 == 0

    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "db").iterdir()} == {0o600}


def test_a_root_without_a_slash_is_a_folder(photos):
    _, plain = convert(photos)
    done = convert_imageset(str(photos), photos.parent / "list.txt", photos.parent / "other")

    assert done == (5, 0)
    assert contents(photos.parent / "other") == contents(plain)


def test_a_root_that_names_continue_comes_first_as_in_caffe(photos):
    shutil.copy(photos / "a.png", photos.parent / "photosb.png")
    shutil.copy(photos / "d.jpg", photos / "b.png")
    (photos.parent / "list.txt").write_text("b.png 3\n")

    convert_imageset(str(photos), photos.parent / "list.txt", photos.parent / "db")

    [record] = contents(photos.parent / "db").values()
    assert (record.height, record.label) == (9, 3)


def test_a_root_without_a_slash_and_without_the_file_names_both(photos):
    (photos.parent / "list.txt").write_text("none.png 3\n")

    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions=["photosnone", "photos/none"]):
        convert_imageset(str(photos), photos.parent / "list.txt", photos.parent / "db", skip=False)


def test_a_missing_library_is_no_fault_of_an_image(photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)

    with expect_error(DataError, ErrorCode.UNAVAILABLE, extra="image"):
        convert(photos)


def test_damage_is_described_without_our_buffer(photos):
    (photos / "a.png").write_text("none")

    with expect_error(DataError, ErrorCode.UNREADABLE) as caught:
        convert(photos, skip=False)
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("line", ["a.png\t3", "a.png 3 ", "a.png\t-1\r"])
def test_a_label_that_is_part_of_the_name_is_shown(photos, line):
    (photos.parent / "list.txt").write_text(f"{line}\n")

    for skip in (True, False):
        with expect_error(DataError, ErrorCode.NOT_FOUND, mentions=["'a.png", "one space"]):
            convert(photos, skip=skip)


@pytest.mark.parametrize("line", ["a.png\ta.xml", "a.png  a.xml", "a.png a.xml "])
def test_an_annotation_file_after_another_separator_is_no_annotation(photos, line):
    (photos.parent / "list.txt").write_text(f"{line}\n")

    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions="one space"):
        convert(photos, ImageSet(annotations=Annotations("xml")))
