"""``demitasse extract_features``."""

from contextlib import closing

import numpy as np
import pytest

from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.proto import Datum
from demitasse.net import Net


def features(path, backend):
    with closing(open_db(path, backend)) as database, closing(database.new_cursor()) as cursor:
        return [(bytes(key), Datum.FromString(bytes(value))) for key, value in records(cursor)]


@pytest.mark.parametrize("kind", ["lmdb", "leveldb"])
@pytest.mark.parametrize("words", ["", "CPU"])
def test_blobs_become_databases(trained, run, kind, words):
    weights = "run_iter_20.caffemodel"

    result = run(f"extract_features {weights} net.prototxt ip,data a_db,b_db 2 {kind} {words}")

    with Net("net.prototxt", "TEST", device="cpu") as net:
        net.load(weights)
        expected = {"ip": [], "data": []}
        for _ in range(2):
            net.forward()
            for name, values in expected.items():
                values.append(np.array(net.blobs[name].data))
    assert result.exit_code == 0
    assert "a_db: 8 records" in result.stdout
    for name, path in (("ip", "a_db"), ("data", "b_db")):
        found = features(path, kind.upper())
        values = np.stack([datum_to_array(datum) for _, datum in found])
        assert [key for key, _ in found] == [b"%010d" % n for n in range(8)]
        assert values.dtype == np.float32
        assert np.allclose(values.reshape(8, -1), np.concatenate(expected[name]).reshape(8, -1))
    assert features("a_db", kind.upper())[0][1].channels == 3


def test_each_blob_needs_a_database(trained, run):
    result = run("extract_features w net.prototxt ip,data one 2 lmdb")

    assert result.exit_code == 2
    assert "2 blobs" in result.stderr


@pytest.mark.parametrize("words", ["ip,ip one,two", "ip,data one,one"])
def test_each_blob_and_each_database_is_given_once(trained, run, words):
    assert run(f"extract_features w net.prototxt {words} 2 lmdb").exit_code == 2


def test_a_blob_that_is_not_there(trained, run):
    result = run("extract_features run_iter_20.caffemodel net.prototxt none db 1 lmdb")

    assert result.exit_code == 3
    assert "got BLOB[,BLOB] none, expected names of blobs; the net has data" in result.stderr
