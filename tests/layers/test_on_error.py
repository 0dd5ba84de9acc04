"""Broken records: refused, or skipped and counted, the same after a resumed run and by any rank."""

import logging

import lmdb
import numpy as np
import PIL.Image
import pytest
from expect_error import expect_error

from demitasse.core.config import settings
from demitasse.errors import ConfigError, DataError
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.lmdb import LmdbCursor
from demitasse.io.data.databases.writing import write_records
from demitasse.testing import make_layer

COUNT = 10
BROKEN = (0, 3, 4, 9)
KINDS = ("Data", "ImageData", "ImageSegData")

# What record k gives where broken ones are skipped: the next good one of the round or the next.
STANDS_FOR = {0: 1, 3: 5, 4: 5, 9: 1}


def pixels(k):
    return np.full((3, 4, 5), k, np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Ten images full of k, label k, as a database and as lists; four of them are broken."""
    write_records(
        tmp_path / "some_lmdb", ((b"%d" % k, array_to_datum(pixels(k), k)) for k in range(COUNT))
    )
    with lmdb.open(str(tmp_path / "some_lmdb")) as env, env.begin(write=True) as transaction:
        for k in BROKEN:
            transaction.put(b"%d" % k, b"\xff broken")
    for k in range(COUNT):
        PIL.Image.fromarray(pixels(k).transpose(1, 2, 0)).save(tmp_path / f"{k}.png")
        if k in BROKEN:
            (tmp_path / f"{k}.png").write_bytes(b"no image")
    (tmp_path / "list.txt").write_text("".join(f"{k}.png {k}\n" for k in range(COUNT)))
    return tmp_path


@pytest.fixture
def reading(folder):
    opened = []

    def open_layer(kind="Data", fields='on_error: "skip"', transform="", context=(), **options):
        source = (
            'data_param { source: "some_lmdb" backend: LMDB'
            if kind == "Data"
            else f'image_data_param {{ source: "list.txt" root_folder: "{folder.as_posix()}/"'
        )
        if "batch_size" not in fields:
            fields += " batch_size: 4"
        tops = 'top: "data" top: "label"'
        text = f'type: "{kind}" {tops} transform_param {{ {transform} }} {source} {fields} }}'
        one = make_layer(text, base_dir=folder, dtype="float32", **options)
        for name, value in dict(context).items():
            setattr(one.layer.context, name, value)
        opened.append(one)
        return one

    yield open_layer
    for one in opened:
        one.layer.close()


def numbers(one, times=1):
    """The numbers of the records of some batches, told by their pixels and by their labels."""
    seen = []
    for _ in range(times):
        data, labels = one.forward()[:2]
        batch = [int(x) for x in data[:, 0, 0, 0]]
        assert [int(x) for x in np.reshape(labels, (len(batch), -1))[:, 0]] == batch
        seen += batch
    return seen


def expected(count):
    return [STANDS_FOR.get(k % COUNT, k % COUNT) for k in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_good_record_stands_in_for_a_broken_one(reading, kind):
    one = reading(kind)

    assert numbers(one, 5) == expected(20)
    assert one.layer.skipped == 2 * len(BROKEN)


def test_naming_a_record_keeps_what_is_done_about_broken_ones(reading, folder):
    (folder / "list.txt").write_text("1.png 1\n2.png 2\n")
    one = reading("ImageData")
    one.forward()

    assert one.layer.record_of(1) == (str(folder / "list.txt"), "2.png")
    assert one.layer.skips_bad_records


@pytest.mark.parametrize("kind", KINDS)
def test_one_record_is_logged_in_every_pass(reading, kind, caplog):
    with caplog.at_level(logging.WARNING):
        one = reading(kind)
        numbers(one, 6)
        one.layer.close()

    lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) in {3, 4}  # batches are made ahead
    assert "1 so far" in lines[0]
    assert ("'0'" in lines[0]) or ("'0.png'" in lines[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_where_the_first_one_ended(reading, kind):
    fields = 'on_error: "skip" batch_size: 3' + (" shuffle: true" if kind != "Data" else "")
    transform = "mirror: true noise_param { prob: 0.5 inverse: true }"
    whole, first, second = (reading(kind, fields, transform, seed=5) for _ in range(3))
    want = [np.array(whole.forward()[0]) for _ in range(8)]

    for batch in want[:3]:
        np.testing.assert_array_equal(first.forward()[0], batch)
    state = first.layer.state()
    second.layer.set_state(state)

    assert state["position"] == 9
    assert state["skipped"] > 0
    for batch in want[3:]:
        np.testing.assert_array_equal(second.forward()[0], batch)
    assert second.layer.skipped == whole.layer.skipped
    assert second.layer.state() == whole.layer.state()


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_share_the_records_of_one(reading, kind):
    alone = reading(kind, phase="TRAIN")
    fields = 'on_error: "skip" batch_size: 2'
    shares = [
        reading(kind, fields, phase="TRAIN", context={"rank": rank, "world_size": 2})
        for rank in range(2)
    ]

    for _ in range(4):
        want = numbers(alone)
        assert [numbers(one) for one in shares] == [want[0::2], want[1::2]]
    assert sum(one.layer.skipped for one in shares) == alone.layer.skipped


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [4, 16])
def test_whole_epochs_leave_broken_records_out(reading, kind, batch_size):
    one = reading(kind, f'on_error: "skip" batch_size: {batch_size}')
    one.layer.begin_epoch()

    seen = numbers(one)
    while not one.layer.epoch_ended:
        seen += numbers(one)

    assert seen == [1, 2, 5, 6, 7, 8]
    assert one.layer.skipped == len(BROKEN)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_cannot_end_with_nothing(reading, kind):
    one = reading(kind, 'on_error: "skip" batch_size: 1')
    one.layer.begin_epoch()

    seen = [numbers(one)[0] for _ in range(6)]

    assert seen == [1, 2, 5, 6, 7, 8]
    with pytest.raises(DataError):
        one.forward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", ["", 'on_error: "raise"'])
def test_a_broken_record_is_an_error_by_default(reading, kind, fields):
    with expect_error(DataError, mentions="record '0"):
        reading(kind, fields)


@pytest.mark.parametrize("kind", KINDS)
def test_the_setting_is_for_layers_that_do_not_say(reading, kind):
    with settings.override(bad_records="skip"):
        assert numbers(reading(kind, "")) == expected(4)
        with pytest.raises(DataError):
            reading(kind, 'on_error: "raise"')


@pytest.mark.parametrize("kind", KINDS)
def test_other_choices_are_refused(reading, kind):
    with expect_error(ConfigError, mentions=["on_error", "ignore"]):
        reading(kind, 'on_error: "ignore"')


@pytest.mark.parametrize("kind", KINDS)
def test_where_all_are_broken_there_is_an_error(reading, kind, folder):
    (folder / "list.txt").write_text("".join(f"{k}.png {k}\n" for k in BROKEN))
    with lmdb.open(str(folder / "some_lmdb")) as env, env.begin(write=True) as transaction:
        for k in range(COUNT):
            transaction.put(b"%d" % k, b"\xff broken")

    with pytest.raises(DataError):
        reading(kind)


def test_a_record_of_another_size_is_not_broken(reading, folder):
    with lmdb.open(str(folder / "some_lmdb")) as env, env.begin(write=True) as transaction:
        large = array_to_datum(np.zeros((3, 9, 9), np.uint8), 2)
        transaction.put(b"2", large.SerializeToString())

    with expect_error(DataError, mentions=["2", "(3, 9, 9)"]):
        reading().forward()


def test_a_record_smaller_than_the_crop_is_broken(reading, folder):
    with lmdb.open(str(folder / "some_lmdb")) as env, env.begin(write=True) as transaction:
        small = array_to_datum(np.zeros((3, 2, 2), np.uint8), 2)
        transaction.put(b"2", small.SerializeToString())

    data = reading(transform="crop_size: 3").forward()[0]

    assert [int(x) for x in data[:, 0, 0, 0]] == [1, 1, 5, 5]


def test_windows_of_broken_images_are_skipped(folder):
    windows = [f"# {k}\n{folder}/{k}.png\n3\n4\n5\n1\n1 0.9 0 0 3 3\n" for k in range(COUNT)]
    (folder / "windows.txt").write_text("".join(windows))
    text = (
        'type: "WindowData" transform_param { crop_size: 3 } window_data_param { '
        'source: "windows.txt" batch_size: 40 fg_fraction: 1 on_error: "skip" }'
    )
    one = make_layer(text, base_dir=folder, dtype="float32")
    try:
        seen = {int(x) for x in one.forward()[0][:, 0, 0, 0]}

        assert seen == set(range(COUNT)) - set(BROKEN)
        assert one.layer.skipped > 0
    finally:
        one.layer.close()


def test_a_damaged_database_is_not_a_broken_record(reading, monkeypatch):
    def damaged(cursor):
        raise DataError("the LMDB is damaged", "some_lmdb")

    monkeypatch.setattr(LmdbCursor, "next", damaged)

    with expect_error(DataError, mentions="LMDB"):
        reading()
