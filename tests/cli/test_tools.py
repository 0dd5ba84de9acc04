"""``convert``, ``compute_image_mean``, ``upgrade`` and ``example``."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from demitasse.io.data.databases.mnist import read_mnist
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.proto import (
    NetParameter,
    SolverParameter,
    V1LayerParameter,
    read_net_params,
    read_net_params_binary,
    read_text,
    write_binary,
)

OLD_NET = """
name: "old"
input: "data" input_dim: 1 input_dim: 3 input_dim: 4 input_dim: 4
layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip" blobs_lr: 1 blobs_lr: 2
  inner_product_param { num_output: 2 } }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- convert -----------------------------------------------------------------------------------


@pytest.fixture
def mnist(folder) -> Path:
    """A folder with MNIST's files, of 5 and 3 images."""
    source = folder / "source"
    source.mkdir()
    for split, count in (("train", 5), ("t10k", 3)):
        images = np.full((count, 28, 28), 7, np.uint8)
        pixels = struct.pack(">HBB3I", 0, 8, 3, *images.shape) + images.tobytes()
        labels = struct.pack(">HBBI", 0, 8, 1, count) + bytes(range(count))
        (source / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        (source / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    return source


def test_mnist_becomes_two_databases(mnist, run):
    assert len(read_mnist(mnist, "train")[0]) == 5
    Path("out").mkdir()

    result = run("convert mnist source out")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{Path('out', 'mnist_train_lmdb')}: 5 records",
        f"{Path('out', 'mnist_test_lmdb')}: 3 records",
    ]


def test_databases_are_replaced_only_on_request(mnist, run):
    assert run("convert mnist source").exit_code == 0

    assert run("convert mnist source").exit_code == 3
    assert json.loads(run("convert mnist source --overwrite --json").stdout) == {
        str(Path("source", "mnist_train_lmdb")): 5,
        str(Path("source", "mnist_test_lmdb")): 3,
    }


def test_an_empty_folder_is_bad_data(folder, run):
    result = run("convert mnist .")

    assert result.exit_code == 3
    assert "images-idx3-ubyte" in result.stderr


# -- compute_image_mean ------------------------------------------------------------------------


def test_the_mean_of_a_database(mnist, run):
    run("convert mnist source")
    database = str(Path("source", "mnist_train_lmdb"))

    shown = run(f"compute_image_mean {database} mean.binaryproto -backend=lmdb").stdout
    run(f"compute_image_mean {database} mean.npy")
    found = json.loads(run(f"compute-image-mean {database} --json").stdout)

    assert shown == "mean_value channel [0]: 7\n"
    assert found == {"shape": [1, 28, 28], "channel_means": [7.0]}
    assert (read_mean(Path("mean.binaryproto")) == 7).all()
    assert np.load("mean.npy").shape == (1, 28, 28)


def test_a_database_that_is_not_there_is_bad_data(run):
    assert run("compute_image_mean none").exit_code == 3


# -- upgrade -----------------------------------------------------------------------------------


def test_an_old_net_as_text(run):
    Path("old.prototxt").write_text(OLD_NET)

    result = run("upgrade net old.prototxt new.prototxt")

    net = read_text("new.prototxt", NetParameter)
    assert result.exit_code == 0
    assert "old.prototxt" in result.stderr  # what was upgraded
    assert [(layer.name, layer.type) for layer in net.layer] == [
        ("input", "Input"),
        ("ip", "InnerProduct"),
    ]
    assert [param.lr_mult for param in net.layer[1].param] == [1, 2]
    assert net == read_net_params("old.prototxt")


@pytest.mark.parametrize("flag", ["", "--binary"])
def test_old_weights(run, flag):
    old = NetParameter(name="old")
    layer = old.layers.add(name="ip", type=V1LayerParameter.INNER_PRODUCT)
    layer.blobs.add(num=1, channels=1, height=2, width=2, data=[1, 2, 3, 4])
    write_binary("old.caffemodel", old)

    result = run(f"upgrade net old.caffemodel new.caffemodel {flag}")

    net = read_net_params_binary("new.caffemodel")
    assert result.exit_code == 0
    assert not net.layers
    assert [(layer.name, layer.type) for layer in net.layer] == [("ip", "InnerProduct")]
    assert list(net.layer[0].blobs[0].data) == [1, 2, 3, 4]


def test_weights_in_hdf5_need_no_upgrade(run):
    h5py = pytest.importorskip("h5py")
    h5py.File("w.caffemodel.h5", "w").close()

    result = run("upgrade net w.caffemodel.h5 new.caffemodel")

    assert result.exit_code == 2
    assert "HDF5 file, whose format has not changed" in result.stderr


def test_an_old_solver(run):
    Path("old.prototxt").write_text('net: "net.prototxt" solver_type: ADAM base_lr: 0.1\n')

    result = run("upgrade solver old.prototxt new.prototxt")

    solver = read_text("new.prototxt", SolverParameter)
    assert result.exit_code == 0
    assert (solver.type, solver.HasField("solver_type")) == ("Adam", False)
    assert not solver.HasField("snapshot_prefix")  # nothing is added


@pytest.mark.parametrize(("kind", "text"), [("net", 'name: "n"'), ("solver", "base_lr: 1")])
def test_fields_of_forks_can_be_left_out(run, kind, text):
    Path("fork.prototxt").write_text(f"{text}\nnever_heard_of: 1\n")

    strict = run(f"upgrade {kind} fork.prototxt new.prototxt")
    lenient = run(f"upgrade {kind} fork.prototxt new.prototxt --ignore-unknown-fields")

    assert strict.exit_code == 3
    assert "fork.prototxt:2:1" in strict.stderr
    assert (lenient.exit_code, "fork.prototxt" in lenient.stderr) == (0, True)
    assert Path("new.prototxt").read_text().split(":")[0] == text.split(":")[0]


@pytest.mark.parametrize("kind", ["net", "solver"])
def test_a_file_that_is_not_there(run, kind):
    assert run(f"upgrade {kind} none.prototxt new.prototxt").exit_code == 3
    assert not Path("new.prototxt").exists()


def test_a_folder_that_is_not_there_is_a_failure(run):
    Path("old.prototxt").write_text(OLD_NET)

    result = run("upgrade net old.prototxt none/new.prototxt")

    assert result.exit_code == 1
    assert "none" in result.stderr


# -- example -----------------------------------------------------------------------------------


def test_the_example_gets_folder_and_device(run, monkeypatch):
    digits = pytest.importorskip("demitasse.examples.digits")
    calls = []
    monkeypatch.setattr(digits, "run", lambda folder, device: calls.append((folder, device)))

    run("example digits")
    run("example digits -out elsewhere -device numpy")

    assert calls == [(Path("digits"), None), (Path("elsewhere"), "numpy")]
