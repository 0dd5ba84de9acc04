"""What is no ordinary file, or no name of one, given as a file of every kind: an error of ours."""

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest
from expect_error import expect_error
from needs import needs

import demitasse
from demitasse import Net, Solver, cvdnn
from demitasse.errors import DemitasseError, ErrorCode
from demitasse.io.data import read_image, read_mean
from demitasse.io.data.databases.annotation_files import read_labels
from demitasse.io.data.databases.cifar import read_cifar
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.hdf5 import Hdf5File, read_list
from demitasse.io.data.databases.mnist import read_idx
from demitasse.io.data.imageset import read_lines
from demitasse.io.data.sources.image_list import read_image_list, read_pairs
from demitasse.io.data.sources.windows import read_window_file
from demitasse.io.proto import (
    NetParameter,
    SolverParameter,
    parse_text,
    read_net_params,
    read_solver_params,
)
from demitasse.layers.detection.detection_evaluate import _read_sizes

pytestmark = needs("named pipes", "links")

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
        inner_product_param { num_output: 2 } }
"""


def net():
    return Net(parse_text(NET, NetParameter), device="numpy")


def load_as(ending):
    """Load weights of a kind that the ending tells."""

    def load(path):
        net().load(linked(path, ending))

    return load


def restore_as(ending):
    def restore(path):
        param = parse_text('base_lr: 0.1 lr_policy: "fixed"', SolverParameter)
        param.net_param.CopyFrom(parse_text(NET, NetParameter))
        with Solver(param, device="numpy") as solver:
            solver.restore(linked(path, ending))

    return restore


def linked(path, ending):
    """Return a name with an ending for a file; a name that cannot be linked to gets it itself."""
    try:
        link = Path(f"link{ending}")
        link.symlink_to(path)
    except (OSError, ValueError):
        return f"{path}{ending}"
    return link


def read_database(backend):
    def read(path):
        with closing(open_db(path, backend)) as database:
            list(records(database.new_cursor()))

    return read


def read_database_file(backend, name):
    """Read a database one of whose files is the given one."""

    def read(path):
        folder = Path("database")
        folder.mkdir()
        linked(path, "x")
        (folder / name).symlink_to(Path("linkx").absolute())
        read_database(backend)(folder)

    return read


def run_layer(text):
    """Make a net whose layer names the file."""

    def run(path):
        name = os.fspath(path)
        try:
            octets = os.fsencode(name)
        except UnicodeEncodeError:
            octets = name.encode("utf-8", "surrogatepass")
        source = "".join(f"\\{octet:03o}" for octet in octets)
        layer = f'layer {{ name: "data" top: "data" {text.replace("FILE", source)} }}'
        Net(parse_text(layer, NetParameter), device="numpy").forward()

    return run


READERS = {
    "net": read_net_params,
    "net to run": lambda path: Net(path, device="numpy"),
    "solver": read_solver_params,
    "weights": demitasse.load_weights,
    **{f"weights {end}": load_as(end) for end in (".caffemodel", ".h5", ".npz", ".safetensors")},
    "state": restore_as(".solverstate"),
    "HDF5 state": restore_as(".solverstate.h5"),
    "image": read_image,
    "mean": read_mean,
    "mean as npy": lambda path: read_mean(linked(path, ".npy")),
    "label map": lambda path: read_labels(Path(path)),
    "LMDB": read_database("LMDB"),
    "LEVELDB": read_database("LEVELDB"),
    "file of an LMDB": read_database_file("LMDB", "data.mdb"),
    "file of a LevelDB": read_database_file("LEVELDB", "CURRENT"),
    "HDF5 rows": lambda path: Hdf5File(path, ["x"]),
    "HDF5 list": read_list,
    "idx file": lambda path: read_idx(Path(path)),
    "CIFAR-10 file": lambda path: read_cifar(Path(path)),
    "image list": lambda path: read_image_list(path, Path),
    "list to be converted": read_lines,
    "list of label images": lambda path: read_pairs(path, "PIXEL"),
    "window file": lambda path: read_window_file(path, 0.5, 0.5),
    "sizes of images": _read_sizes,
    "OpenCV's net": cvdnn.readNetFromCaffe,
    "OpenCV's weights": lambda path: cvdnn.readNetFromCaffe(NET.encode(), path or "."),
    "Data": run_layer('type: "Data" data_param { source: "FILE" batch_size: 1 backend: LMDB }'),
    "ImageData": run_layer(
        'type: "ImageData" top: "label" image_data_param { source: "FILE" batch_size: 1 }'
    ),
    "HDF5Data": run_layer('type: "HDF5Data" hdf5_data_param { source: "FILE" batch_size: 1 }'),
}


def pipe():
    os.mkfifo("pipe")
    return Path("pipe").absolute()


def listening():
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    return Path("socket").absolute()


def ring():
    Path("ring").symlink_to("ring")
    return Path("ring").absolute()


def folder():
    Path("folder").mkdir()
    return Path("folder").absolute()


def sparse():
    """A file of 16 TB, none of which is on the disk."""
    with Path("sparse").open("wb") as file:
        file.truncate((1 << 44) - 4096)  # what ext4 has
    return Path("sparse").absolute()


FILES = {
    "pipe": pipe,
    "socket": listening,
    "zeros": lambda: "/dev/zero",
    "memory": lambda: "/proc/self/mem",
    "ring of links": ring,
    "folder": folder,
    "sparse": sparse,
    "below a file": lambda: Path("/dev/null/x"),
    "nothing": lambda: "",
    "zero byte": lambda: "a\0b",
    "long name": lambda: "x" * 5000,
    "deep name": lambda: "y/" * 3000,
    "half a character": lambda: "a\ud800b",
    "no UTF-8": lambda: "a\udc80b",
}


@pytest.fixture
def little_memory():
    """Let no more than 8 GiB be taken, whatever the machine has."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@needs("/proc")
@pytest.mark.parametrize("given", FILES)
@pytest.mark.parametrize("kind", READERS)
def test_what_is_no_file_is_refused(kind, given, tmp_path, monkeypatch, little_memory):
    monkeypatch.chdir(tmp_path)
    path = FILES[given]()

    with pytest.raises(DemitasseError) as refusal:
        READERS[kind](path)

    str(refusal.value).encode()


@pytest.mark.parametrize("kind", ["net", "weights", "image", "mean", "HDF5 list", "LMDB"])
def test_a_pipe_is_called_a_pipe(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with expect_error(DemitasseError, ErrorCode.UNREADABLE, mentions="pipe"):
        READERS[kind](pipe())
