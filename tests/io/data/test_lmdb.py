"""LMDB: read-only reading, growing while written, and what cannot be opened."""

import gc
import os
import sys
import threading
import warnings
from pathlib import Path

import lmdb
import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases._lmdb_reader import LmdbFile
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.lmdb import LmdbDatabase
from demitasse.io.data.databases.writing import write_database, write_records
from demitasse.io.proto import Datum


def images(n, shape=(1, 4, 5)):
    random = np.random.default_rng(1)
    return [(random.integers(0, 256, shape, np.uint8), label) for label in range(n)]


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "some_lmdb"
    write_database(path, images(7))
    return path


def contents(path, backend="LMDB"):
    db = open_db(path, backend)
    cursor = db.new_cursor()
    found = [(key, bytes(value)) for key, value in records(cursor)]
    cursor.close()
    db.close()
    return found


def test_what_is_written_is_read(database):
    found = contents(database)

    assert [key for key, _ in found] == [b"%08d" % n for n in range(7)]
    for (_, value), (pixels, label) in zip(found, images(7), strict=True):
        datum = Datum.FromString(value)
        assert (datum.channels, datum.height, datum.width) == (1, 4, 5)
        assert datum.data == pixels.tobytes()
        assert datum.label == label


def test_a_cursor_goes_through_the_records_and_back_to_the_first(database):
    db = open_db(database)
    cursor = db.new_cursor()

    keys = []
    while cursor.valid():
        keys.append(cursor.key())
        cursor.next()
    cursor.seek_to_first()

    assert len(keys) == len(db) == 7
    assert cursor.valid()
    assert cursor.key() == keys[0]
    cursor.close()
    db.close()


def test_small_records_are_not_copied(database):
    db = open_db(database)
    cursor = db.new_cursor()

    assert isinstance(cursor.value(), memoryview)
    cursor.close()
    db.close()


@needs("modes")
def test_a_database_on_read_only_media_can_be_read(database):
    (database / "lock.mdb").unlink()
    database.chmod(0o555)

    found = contents(database)

    assert len(found) == 7
    assert [file.name for file in database.iterdir()] == ["data.mdb"]  # nothing was left behind
    database.chmod(0o755)


def test_the_single_file_of_a_database_can_be_named(database):
    assert len(contents(database / "data.mdb")) == 7


def test_one_database_can_be_open_several_times(database):
    first, second = open_db(database), open_db(database.parent / "." / database.name)
    cursor = second.new_cursor()

    first.close()
    first.close()  # once more does no harm

    assert len(list(records(cursor))) == 7
    cursor.close()
    second.close()
    with lmdb.open(str(database), readonly=True, lock=False):  # ours is closed, or this raises
        pass


def test_a_forgotten_database_is_closed(database):
    db = open_db(database)

    del db

    with lmdb.open(str(database), readonly=True, lock=False):
        pass


def test_a_cursor_keeps_its_database_open(database):
    cursor = open_db(database).new_cursor()

    assert len(list(records(cursor))) == 7


@needs("holes in files")
def test_locks_have_their_place_on_the_disk_before_they_are_mapped(tmp_path, monkeypatch):
    """On a full disk the first write to a hole in mapped memory ends the process (SIGBUS)."""
    opened, found = lmdb.open, []

    def seen(path, **options):
        with (Path(path) / "lock.mdb").open("rb") as file:
            found.append(os.lseek(file.fileno(), 0, os.SEEK_HOLE))
        environment = opened(path, **options)
        found.append((Path(path) / "lock.mdb").stat().st_size)
        return environment

    monkeypatch.setattr(lmdb, "open", seen)

    write_database(tmp_path / "db", [(np.zeros((1, 2, 2), np.uint8), 1)])

    there, needed = found
    assert there >= needed > 0


def test_two_threads_read_one_database(database):
    found = {}

    def read(name):
        found[name] = contents(database)

    threads = [threading.Thread(target=read, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found["a"] == found["b"]
    assert len(found["a"]) == 7


def test_a_writer_is_given_more_room_when_the_database_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("demitasse.io.data.databases.lmdb.FIRST_MAP_SIZE", 1 << 16)
    db = LmdbDatabase(tmp_path / "growing_lmdb", "new")
    transaction = db.new_transaction()

    for number in range(50):
        transaction.put(b"%08d" % number, bytes(20_000))
        if number % 10 == 9:
            transaction.commit()

    assert len(db) == 50
    db.close()
    assert len(contents(tmp_path / "growing_lmdb")) == 50


@needs("names of any bytes")
def test_an_lmdb_whose_name_is_no_utf8_is_not_written(tmp_path):
    with expect_error(DataError, ErrorCode.UNWRITABLE):
        open_db(tmp_path / os.fsdecode(b"caf\xe9"), mode="new")


def test_records_can_be_added(database):
    db = open_db(database, mode="write")
    transaction = db.new_transaction()
    transaction.put(b"00000007", b"the eighth")
    transaction.put(b"00000000", b"another first")

    transaction.commit()

    db.close()
    found = contents(database)
    assert len(found) == 8
    assert found[7] == (b"00000007", b"the eighth")
    assert found[0] == (b"00000000", b"another first")


def test_a_database_opened_for_reading_takes_no_records(database):
    db = open_db(database)

    with expect_error(ConfigError, ErrorCode.READ_ONLY, field="mode"):
        db.new_transaction()
    db.close()


def test_a_database_that_is_read_is_not_opened_for_writing(database):
    db = open_db(database)

    with expect_error(DataError, ErrorCode.BAD_STATE):
        open_db(database, mode="write")
    db.close()


def test_databases_may_be_opened_while_a_thread_opens_others(database):
    opened, end = [open_db(database) for _ in range(400)], threading.Event()

    def open_others():
        while not end.is_set():
            open_db(database).close()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=open_others) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(1500):
            with expect_error(DataError, ErrorCode.BAD_STATE):
                open_db(database, mode="write")
    finally:
        end.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    for one in opened:
        one.close()


@pytest.mark.parametrize("key", [b"", b"k" * 512])
def test_keys_that_lmdb_cannot_hold_are_refused(tmp_path, key):
    with expect_error(DataError, ErrorCode.OUT_OF_RANGE, mentions=["1", "511", str(len(key))]):
        write_records(tmp_path / "some_lmdb", [(key, Datum())])

    assert not (tmp_path / "some_lmdb").exists()


# -- what cannot be opened ---------------------------------------------------------------------


def refusal(path, **options):
    with pytest.raises(DataError) as caught:
        open_db(path, **options)
    assert caught.value.source == str(path)
    return caught.value


def test_a_missing_database_is_reported_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    error = refusal("mnist_train_lmdb")

    assert error.code == ErrorCode.NOT_FOUND
    assert str(tmp_path) in error.message


def test_an_empty_folder_is_no_database(tmp_path):
    error = refusal(tmp_path)

    assert error.code == ErrorCode.NOT_FOUND
    assert "data.mdb" in error.message


def test_a_leveldb_is_recognised(tmp_path):
    (tmp_path / "CURRENT").write_text("MANIFEST-000002\n")

    error = refusal(tmp_path)

    assert error.code == ErrorCode.NOT_FOUND
    assert "'backend: LEVELDB'" in error.message


@pytest.mark.parametrize("content", [b"", b"no database " * 1000])
def test_a_file_of_something_else_is_no_database(tmp_path, content):
    (tmp_path / "data.mdb").write_bytes(content)

    assert refusal(tmp_path).code == ErrorCode.CORRUPT


@needs("LMDBs of few pages")
def test_a_database_that_is_cut_short_is_refused(tmp_path):
    path = tmp_path / "some_lmdb"
    write_database(path, images(20, (3, 50, 50)))
    whole = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(whole[: len(whole) // 2])

    error = refusal(path)

    assert error.code == ErrorCode.TRUNCATED
    assert all(str(size) in error.message for size in (len(whole), len(whole) // 2))


def test_an_unknown_backend_lists_the_known_ones(tmp_path):
    with expect_error(
        ConfigError, ErrorCode.UNKNOWN, mentions=["'ROCKSDB'", "LMDB", "LEV"], field="backend"
    ):
        open_db(tmp_path, "ROCKSDB")


# -- writing a whole database ------------------------------------------------------------------


def test_writing_refuses_to_replace_what_is_there(database):
    before = contents(database)

    with expect_error(DataError, ErrorCode.EXISTS):
        write_database(database, images(1))

    assert contents(database) == before


def test_writing_replaces_a_database_when_told(database):
    assert write_database(database, images(2), overwrite=True) == 2

    assert len(contents(database)) == 2
    assert [path.name for path in database.parent.iterdir()] == [database.name]


@needs("links")
def test_a_link_to_a_database_still_leads_to_it_when_that_is_replaced(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write_database(real, images(1))
    link.symlink_to(real)

    write_database(link, images(2), overwrite=True)

    assert len(LmdbDatabase(real)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_writing_never_replaces_a_folder_with_other_things_in_it(database):
    (database / "thesis.tex").write_text("years of work")

    with expect_error(DataError, ErrorCode.EXISTS):
        write_database(database, images(2), overwrite=True)

    assert len(contents(database)) == 7


def test_a_database_that_cannot_be_finished_leaves_nothing_behind(tmp_path):
    def broken():
        yield from images(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_database(tmp_path / "some_lmdb", broken())

    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_replaced_keeps_its_records(database):
    def broken():
        yield from images(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_database(database, broken(), overwrite=True)

    assert len(contents(database)) == 7


def test_records_beyond_one_commit_are_all_there(tmp_path):
    path = tmp_path / "some_lmdb"

    assert write_database(path, images(2001, (1, 1, 1))) == 2001

    assert len(contents(path)) == 2001


def test_an_interrupt_while_it_is_opened_leaves_no_file_open(database, monkeypatch):
    def interrupt(file, offset, size):
        raise KeyboardInterrupt

    monkeypatch.setattr(LmdbFile, "_read_at", interrupt)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            open_db(database)
        gc.collect()

    assert not warned


@needs("LMDBs of few pages")
def test_pages_at_the_end_that_were_never_written_are_not_missed(tmp_path):
    path, short = tmp_path / "changing_lmdb", 0

    for first in range(0, 60 * 40, 40):
        with lmdb.open(str(path), map_size=1 << 28) as environment:
            with environment.begin(write=True) as transaction:
                for i in range(first, first + 40):
                    transaction.put(b"%08d" % (i * 7919 % 5000), bytes(100 + i % 5000))
                for i in range((first + 40) * 31, (first + 40) * 31 + 30):
                    transaction.delete(b"%08d" % (i % 5000))
            pages = environment.info()["last_pgno"] + 1
            page_size = environment.stat()["psize"]
            with environment.begin() as transaction:
                wanted = [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
        short += (path / "data.mdb").stat().st_size < pages * page_size
        assert contents(path) == wanted

    assert short  # else LMDB leaves no such files any more, and this shows nothing
