"""LevelDBs that we write: read by us, and by LevelDB where it is installed."""

import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases._leveldb_files import crc32c, masked
from demitasse.io.data.databases.database import open_db, records


def written(path, *commits, mode="new"):
    """A database that these records were put into, commit by commit."""
    database = open_db(path, "LEVELDB", mode)
    transaction = database.new_transaction()
    for commit in commits:
        for key, value in commit:
            transaction.put(key, value)
        transaction.commit()
    database.close()
    return path


def contents(path):
    database = open_db(path, "LEVELDB")
    return [(key, bytes(value)) for key, value in records(database.new_cursor())]


def numbered(first, last, size=5):
    return [(b"%08d" % i, bytes([i % 256]) * size) for i in range(first, last)]


CASES = {
    "nothing": [],
    "one record": [[(b"k", b"")]],
    "many small ones": [numbered(0, 3000)],
    "several to a block": [numbered(0, 40, 20_000)],
    "larger than a block": [numbered(0, 3, 200_000)],
    "several commits": [numbered(i, i + 100, 900) for i in range(0, 500, 100)],
    "in another order": [numbered(50, 60)[::-1], numbered(0, 10), numbered(20, 55, 7)],
    "an empty commit": [numbered(0, 2), [], numbered(2, 4)],
    "keys of all lengths": [[(b"x" * n, b"y" * n) for n in range(1, 600)]],
}


def expected(commits):
    return sorted({key: value for commit in commits for key, value in commit}.items())


@pytest.mark.parametrize("commits", CASES.values(), ids=CASES)
def test_what_was_written_is_read(tmp_path, commits):
    path = written(tmp_path / "db", *commits)

    assert contents(path) == expected(commits)


@pytest.mark.parametrize("commits", CASES.values(), ids=CASES)
def test_leveldb_reads_it_and_its_checksums_hold(tmp_path, commits):
    plyvel = pytest.importorskip("plyvel")
    path = written(tmp_path / "db", *commits)

    with plyvel.DB(str(path), paranoid_checks=True) as database:
        found = list(database.iterator(verify_checksums=True))

    assert found == expected(commits)


def test_leveldb_adds_to_it_and_we_read_both(tmp_path):
    plyvel = pytest.importorskip("plyvel")
    path = written(tmp_path / "db", numbered(0, 100))

    with plyvel.DB(str(path)) as database:
        database.put(b"00000050", b"new")
        database.put(b"zzz", b"last")

    assert dict(contents(path)) == {**dict(numbered(0, 100)), b"00000050": b"new", b"zzz": b"last"}


def test_we_add_to_what_is_there(tmp_path):
    path = written(tmp_path / "db", numbered(0, 10))

    written(path, numbered(10, 12), [(b"00000003", b"again")], mode="write")

    assert contents(path) == expected([numbered(0, 12), [(b"00000003", b"again")]])
    assert open_db(path, "LEVELDB").last_key() == b"00000011"


def test_a_manifest_of_more_than_a_block(tmp_path):
    commits = [[(b"%0900d" % i, b"value")] for i in range(40)]

    path = written(tmp_path / "db", *commits)

    assert len(contents(path)) == 40


def test_nothing_is_written_over(tmp_path):
    path = written(tmp_path / "db", numbered(0, 1))

    with expect_error(DataError, ErrorCode.EXISTS):
        open_db(path, "LEVELDB", "new")


def test_what_is_not_there_is_not_added_to(tmp_path):
    with expect_error(DataError, ErrorCode.NOT_FOUND):
        open_db(tmp_path / "none", "LEVELDB", "write")


def test_a_database_open_for_reading_refuses_records(tmp_path):
    path = written(tmp_path / "db", numbered(0, 1))

    with expect_error(ConfigError, ErrorCode.READ_ONLY, mentions="'write'", field="mode"):
        open_db(path, "LEVELDB").new_transaction()


@pytest.mark.parametrize(
    ("content", "checksum"),
    [
        (b"", 0),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksums_are_the_published_ones(content, checksum):
    assert crc32c(content) == checksum


@pytest.mark.parametrize("size", [3, 4, 63, 64, 65, 128, 129, 1000, 70_001])
def test_a_checksum_of_any_length_is_that_of_its_bytes(size):
    content = bytes(i * 7 % 251 for i in range(size))
    state = 0xFFFFFFFF
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)

    assert crc32c(content) == state ^ 0xFFFFFFFF


def test_a_masked_checksum():
    assert masked(0) == 0xA282EAD8
    assert masked(crc32c(b"foo")) != crc32c(b"foo")
