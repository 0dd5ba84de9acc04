"""Damaged files are refused with our own exceptions, and leave everything as it was.

This is a sample of what ``nox -s fuzz`` and ``tests/fuzz/run.py`` try by the hundred thousand: the
same files in every run, and the more of them the quicker their reader is.
"""

from contextlib import suppress
from random import Random

import pytest
from mutations import damaged_file, damaged_in_order
from random_nets import nets_readers
from readers import readers

from demitasse.errors import DemitasseError

pytest.importorskip("h5py")
pytest.importorskip("PIL")

NAMES = [
    "net prototxt",
    "solver prototxt",
    "lint of a net",
    "lint of a solver",
    "caffemodel into a net",
    "caffemodel, skipping",
    "caffemodel alone",
    "caffemodel, arrays cut out",
    "solver state",
    "record",
    "records of a batch",
    "encoded record",
    "mean file",
    "idx file",
    "gzipped idx file",
    "list of images",
    "window file",
    "LevelDB log",
    "snappy block",
    "npz",
    "array in an npz",
    "npy",
    "safetensors",
    "LMDB",
    "LevelDB table",
    "LevelDB manifest",
    "LevelDB CURRENT",
    "PNG image",
    "JPEG image",
    "BMP image",
    "GIF image",
    "TIFF image",
    "WEBP image",
    "PPM image",
    "frames of GIF",
    "frames of PNG",
    "frames of TIFF",
    "frames of WEBP",
    "caffe.io image",
    "annotated record",
    "training log",
    "label map",
    "sizes of images",
    "list of HDF5 files",
    "list to be converted",
    "list of label images",
    "table of windows",
    "objects as xml",
    "objects as json",
    "objects as txt",
    "saved results",
    "list gone on with",
    "CIFAR-10 file",
    "model card",
    "demitasse.toml",
    "pyproject.toml",
    "list of trusted files",
    "flags",
    "kept kernel",
    "caffe.io blob",
    "caffe.io datum",
    "caffe.io blobs",
    "cvdnn net",
    "cvdnn weights",
    "HDF5 weights into a net",
    "HDF5 weights alone",
    "HDF5 solver state",
    "HDF5 rows",
]

MICROSECONDS = 15_000
"""How long one reader is tried, by what is said of its cost."""

MOST = 100


@pytest.fixture(scope="module")
def all_readers(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield {reader.name: reader for reader in readers(tmp_path_factory.mktemp("fuzz"))}


def test_every_reader_is_listed(all_readers):
    assert list(all_readers) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_sound_files_are_read(all_readers, name):
    reader = all_readers[name]

    reader.call(reader.files[0])


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_read_or_refused(all_readers, name):
    reader = all_readers[name]
    others = [file for other in all_readers.values() for file in other.files]

    for number in range(max(2, min(MOST, MICROSECONDS // reader.cost))):
        with suppress(DemitasseError, *reader.allowed):
            reader.call(damaged_file(reader, Random(f"{name}/{number}"), others))


@pytest.mark.parametrize("name", NAMES)
def test_files_cut_short_anywhere_are_read_or_refused(all_readers, name):
    reader = all_readers[name]
    file = reader.files[0]
    pieces = max(2, min(40, MICROSECONDS // reader.cost))

    for length in range(0, len(file), max(1, len(file) // pieces)):
        with suppress(DemitasseError, *reader.allowed):
            reader.call(file[:length])


def test_every_byte_is_cut_at_and_changed_in_its_turn():
    ways = [damaged_in_order([b"ab", b"c"], number) for number in range(21)]

    assert len(set(ways)) == 20  # nothing is left of either file that is cut at its first byte
    assert {b"", b"a", b"\0b", b"a\xff", b"\xe3"} < set(ways)
    assert [damaged_in_order([b"ab", b"c"], number + 21) for number in range(21)] == ways


@pytest.mark.parametrize("reader", nets_readers(), ids=lambda reader: reader.name)
def test_random_nets_and_solvers_run_alike_everywhere_or_are_refused(reader):
    for number in range(12):
        with suppress(DemitasseError):
            reader.call(reader.draw(Random(f"{reader.name}/{number}")))
