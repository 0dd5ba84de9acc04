"""LevelDB: logs, tables and compression, and files that are damaged."""

import random
import struct
from contextlib import suppress

import pytest
from expect_error import expect_error
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases._leveldb_files import unsnap
from demitasse.io.data.databases.database import DamagedError, open_db, records

BLOCK = 32 * 1024
DELETED, PUT = 0, 1

# -- a small writer of the format, for the tests -----------------------------------------------


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def counted(content):
    return varint(len(content)) + content


def log(*entries):
    """A log of these records, each split where a block of 32 KiB ends."""
    out = b""
    for entry in entries:
        first, rest = True, entry
        while first or rest:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}
            out += struct.pack("<IHB", 0, len(part), kind[first, not rest]) + part
            first = False
    return out


def batch(sequence, *changes):
    """What a log holds for some changes made at once: (key, contents) or (key, None)."""
    out = struct.pack("<QI", sequence, len(changes))
    for key, value in changes:
        if value is None:
            out += bytes([DELETED]) + counted(key)
        else:
            out += bytes([PUT]) + counted(key) + counted(value)
    return out


def internal(key, sequence, kind=PUT):
    return key + struct.pack("<Q", sequence << 8 | kind)


def block(entries):
    """Entries whose keys leave out what they share with the one before."""
    out, last = b"", b""
    for key, value in entries:
        shared = 0
        while shared < min(len(key), len(last)) and key[shared] == last[shared]:
            shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value))
        out += key[shared:] + value
        last = key
    return out + struct.pack("<II", 0, 1)


def snap(content):
    """Snappy's format, with nothing saved: literals of at most 60 bytes."""
    parts = [content[i : i + 60] for i in range(0, len(content), 60)]
    return varint(len(content)) + b"".join(bytes([len(p) - 1 << 2]) + p for p in parts)


def table(*blocks, compress=False):
    """A table of these blocks of entries (key with sequence number, contents)."""
    out, index = b"", []
    for entries in blocks:
        content = snap(block(entries)) if compress else block(entries)
        index.append((entries[-1][0], varint(len(out)) + varint(len(content))))
        out += content + bytes([compress]) + bytes(4)
    handles = b""
    for content in (block([]), block(index)):
        handles += varint(len(out)) + varint(len(content))
        out += content + bytes(5)
    return out + handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write(folder, files, tables=(), order=b"leveldb.BytewiseComparator", log_number=3):
    """Write a database of some files; its manifest names tables by level, number, first key."""
    folder.mkdir(exist_ok=True)
    edit = b"\x01" + counted(order) + b"\x02" + varint(log_number) + b"\x09\x00\x03\x63\x04\x63"
    for level, number, first in tables:
        edit += b"\x07" + varint(level) + varint(number) + varint(1)
        edit += counted(internal(first, 1)) + counted(internal(first, 1))
    (folder / "MANIFEST-000002").write_bytes(log(edit))
    (folder / "CURRENT").write_text("MANIFEST-000002\n")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def contents(path):
    cursor = open_db(path, "LEVELDB").new_cursor()
    found = [(key, bytes(value)) for key, value in records(cursor)]
    cursor.close()
    return found


# -- reading -----------------------------------------------------------------------------------


def test_a_log_is_read_in_order_of_the_keys(tmp_path):
    content = log(batch(1, (b"b", b"two"), (b"a", b"one")), batch(3, (b"c", b"three")))

    path = write(tmp_path / "some", {"000003.log": content})

    assert contents(path) == [(b"a", b"one"), (b"b", b"two"), (b"c", b"three")]


def test_the_newest_contents_of_a_key_count(tmp_path):
    content = log(batch(1, (b"a", b"old"), (b"b", b"gone"), (b"a", b"new"), (b"b", None)))

    assert contents(write(tmp_path / "some", {"000003.log": content})) == [(b"a", b"new")]


@pytest.mark.parametrize("size", [1, BLOCK - 40, BLOCK, 3 * BLOCK])
def test_records_may_go_on_in_the_next_block_of_a_log(tmp_path, size):
    entries = [(b"%03d" % i, bytes([i]) * (size + i)) for i in range(20)]
    content = log(*(batch(i + 1, entry) for i, entry in enumerate(entries)))

    assert contents(write(tmp_path / "some", {"000003.log": content})) == entries


def test_what_was_being_written_when_the_writer_died_is_left_out(tmp_path):
    content = log(batch(1, (b"a", b"one")), batch(2, (b"b", b"two")))

    path = write(tmp_path / "some", {"000003.log": content[:-2]})

    assert contents(path) == [(b"a", b"one")]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("end", ["ldb", "sst"])
def test_tables_are_read(tmp_path, compress, end):
    entries = [(b"key%03d" % i, b"v" * i) for i in range(9)]
    stored = [(internal(key, 1), value) for key, value in entries]
    content = table(stored[:4], stored[4:], compress=compress)

    path = write(tmp_path / "some", {f"000005.{end}": content}, [(2, 5, b"key000")])

    assert contents(path) == entries


def test_logs_and_tables_of_all_levels_are_merged(tmp_path):
    files = {
        "000010.ldb": table([(internal(b"a", 1), b"level 1"), (internal(b"b", 2), b"level 1")]),
        "000011.ldb": table([(internal(b"x", 3), b"level 1"), (internal(b"y", 4), b"level 1")]),
        "000012.ldb": table([(internal(b"a", 5), b"level 0"), (internal(b"y", 6, DELETED), b"")]),
        "000013.ldb": table([(internal(b"a", 7), b"level 0 too")]),
        "000014.log": log(batch(8, (b"b", b"log"), (b"m", b"log"))),
        "000009.log": log(batch(0, (b"z", b"an old log, in a table by now"))),
    }
    tables = [(1, 11, b"x"), (1, 10, b"a"), (0, 12, b"a"), (0, 13, b"a")]

    path = write(tmp_path / "some", files, tables, log_number=14)

    assert contents(path) == [
        (b"a", b"level 0 too"),
        (b"b", b"log"),
        (b"m", b"log"),
        (b"x", b"level 1"),
    ]


def test_tables_that_were_replaced_are_not_read(tmp_path):
    files = {"000010.ldb": table([(internal(b"a", 1), b"old")])}
    path = write(tmp_path / "some", files, [(1, 10, b"a")])
    manifest = (path / "MANIFEST-000002").read_bytes() + log(b"\x06\x01\x0a")
    (path / "MANIFEST-000002").write_bytes(manifest)

    assert contents(path) == []


def test_a_database_in_use_by_another_program_can_be_read(tmp_path):
    path = write(tmp_path / "some", {"000003.log": log(batch(1, (b"a", b"one"))), "LOCK": b""})
    before = sorted(file.name for file in path.iterdir())

    assert contents(path) == [(b"a", b"one")]
    assert sorted(file.name for file in path.iterdir()) == before  # nothing was left behind


def test_a_leveldb_with_a_log_is_not_added_to(tmp_path):
    path = write(tmp_path / "some", {"000003.log": log(batch(1, (b"a", b"1")))})

    with expect_error(DataError, ErrorCode.UNSUPPORTED):
        open_db(path, "LEVELDB", "write")


@pytest.mark.parametrize("mode", ["new", "write"])
def test_a_full_disk_names_the_database_when_it_is_opened_for_writing(mode, tmp_path, monkeypatch):
    path = tmp_path / "db"
    if mode == "write":
        open_db(path, "LEVELDB", "new").close()

    def fsync(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OSError, match="No space left") as caught:
        open_db(path, "LEVELDB", mode)
    assert caught.value.filename == str(path)


def test_a_cursor_beyond_the_end_has_no_record(tmp_path):
    cursor = open_db(write(tmp_path / "some", {}), "LEVELDB").new_cursor()

    assert not cursor.valid()
    with expect_error(DataError, ErrorCode.OUT_OF_RANGE):
        cursor.value()


# -- snappy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (b"\x00", b""),
        (b"\x03\x08abc", b"abc"),
        (b"\x06\x08abc\x05\x03", None),  # four bytes back to three: one too many
        (b"\x07\x08abc\x01\x03", b"abcabca"),  # a copy of one offset byte that overlaps itself
        (b"\x06\x08abc\x0a\x03\x00", b"abcabc"),  # of two
        (b"\x06\x08abc\x0b\x03\x00\x00\x00", b"abcabc"),  # of four
        (b"\x05\x00a\x01\x01", b"aaaaa"),
        (b"\x64\xf0\x63" + b"x" * 100, b"x" * 100),  # a literal with one byte of length
        (b"\xac\x02\xf4\x2b\x01" + b"y" * 300, b"y" * 300),  # with two
        (b"\x04\x08abc", None),  # fewer than it says
        (b"\x04\x01\x01", None),  # refers to nothing
        (b"\x07\x08abc\x01\x00", None),  # refers to itself
        (b"\x03\x08ab", None),  # cut short
        (b"\x07\x08abc\x01", None),
        (b"", None),
        (b"\xff\xff\xff\xff\xff\x7f", None),  # huge
    ],
)
def test_snappy_is_undone(packed, plain):
    if plain is None:
        with pytest.raises(DamagedError):
            unsnap(packed)
    else:
        assert unsnap(packed) == plain


# -- damage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    stored = [(internal(b"key%03d" % i, 1), b"v" * i) for i in range(9)]
    files = {
        "000005.ldb": table(stored[:4], stored[4:], compress=True),
        "000003.log": log(batch(20, (b"key100", b"in the log"))),
    }
    return write(tmp_path_factory.mktemp("leveldb") / "some", files, [(2, 5, b"key000")])


def test_a_missing_table_is_named(tmp_path):
    path = write(tmp_path / "some", {}, [(2, 5, b"a")])

    with expect_error(DataError, ErrorCode.CORRUPT, mentions="000005.ldb"):
        open_db(path, "LEVELDB")


@pytest.mark.parametrize("kept", [0, 30, 90])
def test_a_table_that_is_cut_short_is_refused(tmp_path, kept):
    content = table([(internal(b"a", 1), b"v" * 50)])[:kept]
    path = write(tmp_path / "some", {"000005.ldb": content}, [(2, 5, b"a")])

    with expect_error(DataError, ErrorCode.CORRUPT):
        contents(path)


def test_keys_in_another_order_are_refused(tmp_path):
    path = write(tmp_path / "some", {}, order=b"own.Comparator")

    with expect_error(DataError, ErrorCode.CORRUPT, mentions="'own.Comparator'"):
        open_db(path, "LEVELDB")


def test_what_is_no_leveldb_is_refused(tmp_path):
    with expect_error(DataError, ErrorCode.NOT_FOUND):
        open_db(tmp_path / "none", "LEVELDB")
    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions=["LEVELDB", "CURRENT"]):
        open_db(tmp_path, "LEVELDB")
    (tmp_path / "data.mdb").write_bytes(b"")
    with expect_error(
        DataError, ErrorCode.NOT_FOUND, mentions=["'backend: LMDB'", "LEVELDB", "LMDB"]
    ):
        open_db(tmp_path, "LEVELDB")


@pytest.mark.parametrize("name", ["..", "a/..", "/", "."])
def test_what_is_current_is_a_file_of_the_folder(tmp_path, name):
    (tmp_path / "CURRENT").write_text(f"{name}\n")

    with expect_error(DataError, ErrorCode.CORRUPT, mentions="CURRENT"):
        open_db(tmp_path, "LEVELDB")


def test_a_table_that_is_cut_short_while_it_is_read_is_an_error(tmp_path):
    blocks = [[(internal(b"%03d" % k, 1), random.Random(k).randbytes(9000))] for k in range(99)]
    path = write(tmp_path / "some", {"000005.ldb": table(*blocks)}, [(2, 5, b"000")])
    cursor = open_db(path, "LEVELDB").new_cursor()
    with (path / "000005.ldb").open("r+b") as file:
        file.truncate(20_000)

    with expect_error(DataError, ErrorCode.CORRUPT):
        all(cursor.next() is None for _ in blocks)


@settings(max_examples=150)
@given(st.data())
def test_damage_is_an_error_of_ours_or_goes_unnoticed(sound, data):
    name = data.draw(st.sampled_from(["000005.ldb", "000003.log", "MANIFEST-000002", "CURRENT"]))
    whole = (sound / name).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    cut = data.draw(st.booleans())
    damaged = whole[:place] if cut else whole[:place] + bytes([byte]) + whole[place + 1 :]
    try:
        (sound / name).write_bytes(damaged)

        with suppress(DataError):  # and nothing else
            contents(sound)
    finally:
        (sound / name).write_bytes(whole)
