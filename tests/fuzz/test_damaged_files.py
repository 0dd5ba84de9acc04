"""Damaged files are refused with our own exceptions, and leave everything as it was.

``nox -s fuzz`` tries thousands of files for each reader, ``tests/fuzz/run.py`` as many as wanted.
"""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from mutations import changes, damaged
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
    "HDF5 weights into a net",
    "HDF5 weights alone",
    "HDF5 solver state",
    "HDF5 rows",
]


@pytest.fixture(scope="module")
def all_readers(tmp_path_factory):
    return {reader.name: reader for reader in readers(tmp_path_factory.mktemp("fuzz"))}


def test_every_reader_is_listed(all_readers):
    assert list(all_readers) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_sound_files_are_read(all_readers, name):
    reader = all_readers[name]

    reader.call(reader.files[0])


@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(what=changes(), which=changes())
def test_damaged_files_are_read_or_refused(all_readers, name, what, which):
    reader = all_readers[name]
    others = [file for other in all_readers.values() for file in other.files]
    file = reader.files[len(which) % len(reader.files)]

    with contextlib.suppress(DemitasseError):
        reader.call(damaged(file, what, others, reader.form))


@pytest.mark.parametrize("name", NAMES)
def test_files_cut_short_anywhere_are_read_or_refused(all_readers, name):
    reader = all_readers[name]
    file = reader.files[0]

    for length in range(0, len(file), max(1, len(file) // 40)):
        with contextlib.suppress(DemitasseError):
            reader.call(file[:length])
