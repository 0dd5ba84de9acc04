"""Files cost memory in proportion to their size: readers count before they make anything."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
from needs import needs

from demitasse.io.proto import NetParameter
from demitasse.io.proto.wire_format import length_prefix, memory_cost, memory_limit, message_cost

FACTOR, SPARE = 50, 64 << 20
SIZE = 1_500_000
NET = """
layer { name: "i" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
"""
PROGRAM = """
import re, resource, sys
from pathlib import Path
import demitasse as dm, numpy
from demitasse.errors import DemitasseError
file = sys.argv[1]
net = dm.Net("n.prototxt", "TEST", device="numpy", seed=1)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = peak()
try:
    {read}
    said = "read"
except DemitasseError as error:
    said = str(error.code)
print(peak() - before, said)
"""
LOAD = "net.load(file)"


def repeated(number):
    """Return many empty messages of a field."""
    one = length_prefix(number, 0)
    return one * (SIZE // len(one))


def npz(path):
    np.savez_compressed(path, **{"ip/0": np.zeros(SIZE * 100, np.uint8)})


def hdf5(path):
    with h5py.File(path, "w") as file:
        for index in range(4):
            zeros = np.zeros(SIZE * 10, np.float32)
            file.create_dataset(f"data/ip/{index}", data=zeros, compression=9, chunks=(1 << 20,))


CASES = {
    "layer.caffemodel": (repeated(NetParameter.LAYER_FIELD_NUMBER), LOAD),
    "v1.caffemodel": (repeated(NetParameter.LAYERS_FIELD_NUMBER), LOAD),
    "names.caffemodel": (repeated(NetParameter.INPUT_FIELD_NUMBER), LOAD),
    "layer.prototxt": (b"layer{}" * (SIZE // 7), "dm.Net(file, 'TEST')"),
    "v1.prototxt": (b"layers{}" * (SIZE // 8), "dm.Net(file, 'TEST')"),
    "zeros.npz": (npz, LOAD),
    "zeros.caffemodel.h5": (hdf5, LOAD),
    "tables.toml": (b"".join(b"[%d]\n" % i for i in range(120_000)), "dm.load_model(file)"),
    "image.txt": (b"a 0\n" * (SIZE // 4), "dm.lint.lint(file)"),
    "nodes.onnx": (b"\x3a\x80\xb5\x18" + b"\x0a\x00" * 200_000, "dm.import_onnx(file)"),
}


@needs("/proc")
@pytest.mark.parametrize("name", CASES)
def test_memory_is_bounded_by_the_size_of_the_file(tmp_path, name):
    content, read = CASES[name]
    if name.endswith("onnx"):
        pytest.importorskip("onnx")
    path = tmp_path / name
    (tmp_path / "n.prototxt").write_text(NET)
    content(path) if callable(content) else path.write_bytes(content)

    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.replace("{read}", read), name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-2000:]
    memory, said = done.stdout.split()
    assert int(memory) < SPARE + FACTOR * path.stat().st_size, said


def test_messages_in_groups_and_long_numbers_are_counted():
    layer = length_prefix(NetParameter.LAYER_FIELD_NUMBER, 0)
    group = b"\x9b\x3f\x08\x01\x9c\x3f"  # an unknown field 1011
    number = b"\x08" + b"\xff" * 9 + b"\x01"
    kind = NetParameter.DESCRIPTOR
    one = message_cost(kind.fields_by_name["layer"].message_type)

    for between in (b"", group, number, b"\x0d1234", b"\x0912345678"):
        encoded = layer + between + layer
        assert memory_cost(encoded, kind, 1 << 30) == 2 * one, between


def test_real_nets_are_far_from_the_limit(reference_data):
    for path in sorted(reference_data.rglob("*.caffemodel"))[:40]:
        encoded = path.read_bytes()[: 64 << 20]

        assert memory_cost(encoded, NetParameter.DESCRIPTOR, 1 << 40) < memory_limit(len(encoded))
