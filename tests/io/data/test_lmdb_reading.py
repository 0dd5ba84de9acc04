"""LMDB: our reading of the format, with the LMDB library as the judge, and of damaged files."""

import random
from contextlib import closing, suppress

import lmdb
import pytest
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.database import open_db, records

PAGE = 4096


def stored(path, wanted, *, removed=(), **options):
    """Write records with the LMDB library, some at a time; remove some."""
    with lmdb.open(str(path), map_size=1 << 26, **options) as env:
        items = list(wanted.items())
        for begin in range(0, len(items), 40):
            with env.begin(write=True) as transaction:
                for key, value in items[begin : begin + 40]:
                    transaction.put(key, value)
        for key in removed:
            with env.begin(write=True) as transaction:
                transaction.delete(key)
    return path


def contents(path):
    with closing(open_db(path)) as database, closing(database.new_cursor()) as cursor:
        found = [(key, bytes(value)) for key, value in records(cursor)]
        assert len(found) == len(database)
    return found


def judged(path):
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        return list(transaction.cursor())


# -- the library as the judge ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_what_the_library_wrote_is_read(tmp_path, seed):
    chance = random.Random(seed)
    longest = chance.choice([8, 60, 511])
    largest = chance.choice([30, 900, 5000, 60_000])
    wanted = {
        chance.randbytes(chance.randint(1, longest)): chance.randbytes(chance.randint(0, largest))
        for _ in range(chance.choice([1, 5, 400]))
    }
    removed = chance.sample(sorted(wanted), chance.randint(0, len(wanted) // 2))

    path = stored(tmp_path / "some_lmdb", wanted, removed=removed)

    left = {key: value for key, value in wanted.items() if key not in removed}
    assert contents(path) == judged(path) == sorted(left.items())


def test_a_deep_tree_is_read(tmp_path):
    wanted = {b"%0500d" % number: b"" for number in range(600)}  # eight to a page

    path = stored(tmp_path / "some_lmdb", wanted)

    assert contents(path) == sorted(wanted.items())
    with closing(open_db(path)) as database:
        assert database.last_key() == max(wanted)


def test_a_database_that_lost_all_its_records_is_empty(tmp_path):
    path = stored(tmp_path / "some_lmdb", {b"a": b"1"}, removed=[b"a"])

    assert contents(path) == []


def test_what_is_read_outlives_the_database(tmp_path):
    wanted = {b"small": b"s" * 9, b"page": b"p" * 3000, b"pages": b"r" * 50_000}
    path = stored(tmp_path / "some_lmdb", wanted)

    with closing(open_db(path)) as database, closing(database.new_cursor()) as cursor:
        kept = dict(records(cursor))

    assert {key: bytes(value) for key, value in kept.items()} == wanted


# -- what Caffe does not write -----------------------------------------------------------------


def refusal(path):
    with pytest.raises(DataError) as caught:
        contents(path)
    assert caught.value.source == str(path)
    assert caught.value.code == ErrorCode.CORRUPT
    return caught.value.message


def test_named_databases_are_refused(tmp_path):
    path = tmp_path / "some_lmdb"
    with lmdb.open(str(path), max_dbs=1) as env:
        env.open_db(b"inner")

    assert "b'inner'" in refusal(path)


@pytest.mark.parametrize(
    "flag",
    [0x04, 0x02, 0x08],
    ids=["DUPSORT", "REVERSEKEY", "INTEGERKEY"],
)
def test_other_kinds_of_databases_are_refused(tmp_path, flag):
    path = stored(tmp_path / "some_lmdb", {b"a": b"1"})
    with (path / "data.mdb").open("r+b") as file:
        for meta in (0, PAGE):
            file.seek(meta + 92)
            file.write(bytes([flag]))

    assert f"flags {flag:#x}" in refusal(path)


# -- files that change -------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path):
    return stored(tmp_path / "some_lmdb", {b"%04d" % k: b"v" * 3000 for k in range(200)})


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error(large):
    cursor = open_db(large).new_cursor()
    cursor.value()
    with (large / "data.mdb").open("r+b") as file:
        file.truncate(3 * PAGE)

    with expect_error(DataError, ErrorCode.BAD_STATE) as caught:
        list(records(cursor))
    assert caught.value.source == str(large)


def test_a_file_that_is_written_to_while_it_is_read_is_an_error(large):
    cursor = open_db(large).new_cursor()
    cursor.value()
    stored(large, {b"%04d" % k: b"w" * 3000 for k in range(200)})

    with expect_error(DataError, ErrorCode.BAD_STATE):
        list(records(cursor))


# -- damaged files -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Records in leaves, in one overflow page each and in several; below branches."""
    folder = tmp_path_factory.mktemp("lmdb")
    made = {
        "small": {b"%06d" % k: b"v" * (k % 50) for k in range(900)},
        "page": {b"%06d" % k: b"v" * 3000 for k in range(30)},
        "pages": {b"%06d" % k: b"v" * (9000 * k) for k in range(6)},
        "long keys": {b"%0400d" % k: b"v" for k in range(120)},
    }
    return {name: stored(folder / name, wanted) for name, wanted in made.items()}


def bits_flipped(content, chance):
    for _ in range(chance.choice([1, 1, 8])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def header_overwritten(content, chance):
    """Change the meta pages, or the beginning of a page or one of its nodes."""
    page = chance.randrange(len(content) // PAGE) * PAGE
    place = page + (chance.randrange(152) if chance.random() < 0.7 else chance.randrange(PAGE))
    width = chance.choice([1, 2, 4, 8])
    value = chance.choice([0, 1, 2, 3, 16, PAGE, (1 << 8 * width) - 1, chance.getrandbits(64)])
    content[place : place + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def cut_short(content, chance):
    del content[chance.randrange(len(content)) :]


def pages_swapped(content, chance):
    a, b = (chance.randrange(len(content) // PAGE) * PAGE for _ in range(2))
    content[a : a + PAGE], content[b : b + PAGE] = content[b : b + PAGE], content[a : a + PAGE]


def page_repeated(content, chance):
    """One page is written over another with that one's number: rings and doubles."""
    a, b = (chance.randrange(len(content) // PAGE) * PAGE for _ in range(2))
    content[b + 8 : b + PAGE] = content[a + 8 : a + PAGE]


@pytest.mark.parametrize(
    "damage", [bits_flipped, header_overwritten, cut_short, pages_swapped, page_repeated]
)
@pytest.mark.parametrize("kind", ["small", "page", "pages", "long keys"])
def test_damage_is_an_error_of_ours_or_goes_unnoticed(kinds, tmp_path, kind, damage):
    whole = (kinds[kind] / "data.mdb").read_bytes()
    file = tmp_path / "data.mdb"
    chance = random.Random(f"{kind} {damage.__name__}")

    for _ in range(100):
        content = bytearray(whole)
        damage(content, chance)
        file.write_bytes(content)

        with suppress(DataError):  # and nothing else, and an end
            contents(tmp_path)


def number_at(content, place):
    return int.from_bytes(content[place : place + 8], "little")


def test_a_ring_of_pages_has_an_end(kinds, tmp_path):
    content = bytearray((kinds["long keys"] / "data.mdb").read_bytes())
    newest = max((0, PAGE), key=lambda meta: number_at(content, meta + 144))
    root = number_at(content, newest + 128)
    node = root * PAGE + (number_at(content, root * PAGE + 18) & 0xFFFF)
    content[node : node + 4] = root.to_bytes(4, "little")  # the second child is the root itself
    (tmp_path / "data.mdb").write_bytes(content)

    assert "the LMDB is damaged: page" in refusal(tmp_path)
