"""HDF5 files whose data sets lie in other files of the machine, which nobody asked to read."""

import numpy as np
import pytest
from expect_error import expect_error

import demitasse
from demitasse.errors import DataError, ErrorCode, SnapshotError, WeightsError
from demitasse.io.data.databases.hdf5 import Hdf5File
from demitasse.training.checkpoint.state_file import read_state

h5py = pytest.importorskip("h5py")

KINDS = ["external", "virtual", "linked", "through a group"]


@pytest.fixture
def secret(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["key"] = np.arange(4, dtype=np.float32)
        file["group/0"] = np.arange(4, dtype=np.float32)
    (tmp_path / "secret.txt").write_bytes(bytes(16))
    return tmp_path


def put(file, name, kind, folder):
    """Put a data set of four numbers there that are in another file."""
    if kind == "external":
        where = [(str(folder / "secret.txt"), 0, 16)]
        file.create_dataset(name, (4,), np.float32, external=where)
    elif kind == "virtual":
        layout = h5py.VirtualLayout((4,), np.float32)
        layout[:] = h5py.VirtualSource(str(folder / "secret.h5"), "key", (4,))
        file.create_virtual_dataset(name, layout)
    elif kind == "linked":
        file[name] = h5py.ExternalLink("secret.h5", "/key")
    else:
        file[name.rpartition("/")[0]] = h5py.ExternalLink("secret.h5", "/group")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_come_from_their_own_file(secret, kind):
    with h5py.File(secret / "w.h5", "w") as file:
        put(file, "data/ip/0", kind, secret)

    with expect_error(WeightsError, ErrorCode.UNTRUSTED, mentions=["w.h5", "data/ip"]):
        demitasse.load_weights(secret / "w.h5")


@pytest.mark.parametrize("kind", KINDS)
def test_records_come_from_their_own_file(secret, kind):
    with h5py.File(secret / "d.h5", "w") as file:
        put(file, "rows/0", kind, secret)

    with expect_error(DataError, ErrorCode.UNTRUSTED, mentions=["d.h5", "rows"]):
        Hdf5File(secret / "d.h5", ["rows/0"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_comes_from_its_own_file(secret, kind):
    with h5py.File(secret / "s.h5", "w") as file:
        file["iter"] = np.array([1])
        put(file, "history/0", kind, secret)

    with expect_error(SnapshotError, ErrorCode.UNTRUSTED, mentions=["s.h5", "history"]):
        read_state(secret / "s.h5")


def test_a_link_inside_the_file_is_followed_but_not_out_of_it(secret):
    with h5py.File(secret / "d.h5", "w") as file:
        file["kept/rows"] = np.zeros((3, 2), np.float32)
        file["rows"] = h5py.SoftLink("/kept/rows")
        file["out"] = h5py.SoftLink("/door/key")
        file["door"] = h5py.ExternalLink("secret.h5", "/")
        file["round"] = h5py.SoftLink("round")

    assert Hdf5File(secret / "d.h5", ["rows"]).shapes == [(2,)]
    with expect_error(DataError, ErrorCode.UNTRUSTED, mentions=["d.h5", "'secret.h5'", "/door"]):
        Hdf5File(secret / "d.h5", ["out"])
    with expect_error(DataError, ErrorCode.CORRUPT, mentions="16"):
        Hdf5File(secret / "d.h5", ["round"])


def test_weights_in_very_many_groups_are_refused(tmp_path):
    with h5py.File(tmp_path / "w.h5", "w") as file:
        group = file.create_group("data")
        for _ in range(200):
            group = group.create_group("g")
        group["round"] = file["data"]

    with expect_error(WeightsError, ErrorCode.LIMIT, mentions="128"):
        demitasse.load_weights(tmp_path / "w.h5")
