"""RecordReader: round and round, and each rank its share."""

import pytest
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.database import open_db
from demitasse.io.data.databases.lmdb import LmdbDatabase
from demitasse.io.data.databases.writing import write_records
from demitasse.io.data.sources.database import RecordReader
from demitasse.io.data.sources.source import Shard
from demitasse.io.proto import Datum


@pytest.fixture
def letters(tmp_path):
    """A database of the records a, b, c, d, e."""
    records = [(letter.encode(), Datum(data=letter.encode())) for letter in "abcde"]
    write_records(tmp_path / "letters_lmdb", records)
    db = open_db(tmp_path / "letters_lmdb")
    yield db
    db.close()


def read(reader, count):
    found = "".join(Datum.FromString(bytes(raw)).data.decode() for raw in reader.take(count))
    reader.close()
    return found


def test_after_the_last_record_comes_the_first(letters):
    assert read(RecordReader(letters), 12) == "abcdeabcdeab"


@pytest.mark.parametrize("position", [0, 3, 4, 5, 7, 5_000_000_003])
def test_reading_begins_after_the_records_used_before(letters, position):
    rest = "abcdeabcdeabcde"[position % 5 :][:7]

    assert read(RecordReader(letters, position), 7) == rest


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7])
def test_the_ranks_together_read_what_one_would(letters, ranks):
    want = read(RecordReader(letters, 2), 4 * ranks)

    shares = [read(RecordReader(letters, 2, Shard(rank, ranks)), 4) for rank in range(ranks)]

    assert "".join(shares[i % ranks][i // ranks] for i in range(4 * ranks)) == want


def test_looking_does_not_move(letters):
    reader = RecordReader(letters, 1)

    assert Datum.FromString(reader.record(1)).data == b"b"
    assert reader.number == 1
    assert read(reader, 2) == "bc"


def test_records_are_counted_for_ever(letters):
    reader = RecordReader(letters, 4, Shard(1, 2))

    reader.take(10)

    assert reader.number == 4 + 1 + 20
    reader.close()


@pytest.mark.parametrize(("number", "key"), [(0, "a"), (4, "e"), (5, "a"), (13, "d")])
def test_the_key_of_a_record_can_be_found(letters, number, key):
    reader = RecordReader(letters)

    assert reader.key_of(number) == key
    reader.close()


def test_an_empty_database_is_refused(tmp_path):
    db = LmdbDatabase(tmp_path / "empty_lmdb", "new")

    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions="empty_lmdb"):
        RecordReader(db)
    db.close()


def test_any_record_can_be_looked_at_without_moving(letters):
    reader = RecordReader(letters, 1)

    looked = [Datum.FromString(reader.record(at)).data for at in (3, 4, 5, 2, 12)]

    assert looked == [b"d", b"e", b"a", b"c", b"c"]
    assert reader.key_of(7) == "c"
    assert (reader.number, reader.size) == (1, 5)
    assert read(reader, 2) == "bc"


@pytest.mark.parametrize("ranks", [1, 3])
def test_large_records_of_a_batch_stay_what_they_are_across_the_end_of_the_database(
    tmp_path, ranks
):
    wanted = [bytes([65 + k]) * 9000 * (1 + k % 3) for k in range(7)]
    write_records(
        tmp_path / "large_lmdb", [(b"%d" % k, Datum(data=one)) for k, one in enumerate(wanted)]
    )
    db = open_db(tmp_path / "large_lmdb")
    reader = RecordReader(db, 0, Shard(0, ranks))

    for batch in range(3):  # in memory that is used again
        found = [Datum.FromString(bytes(raw)).data for raw in reader.take(10)]

        assert found == [wanted[(batch * 10 + k) * ranks % 7] for k in range(10)]
    reader.close()
    db.close()


def test_large_records_cannot_be_written_to(tmp_path):
    write_records(tmp_path / "large_lmdb", [(b"a", Datum(data=b"." * 9000))])
    db = open_db(tmp_path / "large_lmdb")
    reader = RecordReader(db)

    assert memoryview(reader.take(1)[0]).readonly
    reader.close()
    db.close()
