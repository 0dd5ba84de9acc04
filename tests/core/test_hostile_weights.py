"""Files of arrays, npy, npz and safetensors, that claim more than they hold."""

import io
import json
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import load_weights
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.weights.npz import read_npy


def npy(shape, kind="<f4", data=b"", extra=""):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, {extra}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}/0.npy", content)
    return path


def safetensors(path, header, data=b""):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


def test_arrays_in_every_order_are_read_as_numpy_reads_them(tmp_path):
    arrays = [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.zeros((0, 4), np.float16),
        np.float32(2),
        np.arange(3, dtype=">i4"),
        np.array([True, False]),
    ]
    for array in arrays:
        np.save(tmp_path / "a.npy", array)

        found = read_npy(tmp_path / "a.npy")

        assert found.dtype == np.asarray(array).dtype
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable


@pytest.mark.parametrize(
    "content",
    [
        npy("(1000000, 1000000)"),
        npy("(1000000000000000000, 1000000000000000000, 8)"),
        npy("(4,)", data=bytes(15)),
        npy("(1,)", kind="|O", data=bytes(8)),
        npy("(1,)", extra="'x': ().__class__, ", data=bytes(4)),
        npy("(" * 3000),
        npy("(-1,)", data=bytes(4)),
        npy("(1,)", kind="<f9", data=bytes(9)),
        b"\x93NUMPY",
        b"",
    ],
)
def test_an_array_that_claims_too_much_is_refused(tmp_path, content):
    path = tmp_path / "a.npy"
    path.write_bytes(content)

    with expect_error(ValueError):
        read_npy(path)
    with expect_error(WeightsError, ErrorCode.UNREADABLE, mentions="'ip/0.npy'"):
        load_weights(npz(tmp_path / "a.npz", ip=content))


def test_an_archive_that_unpacks_to_more_than_deflate_allows_is_refused(tmp_path):
    path = npz(tmp_path / "a.npz", ip=npy("(9,)", data=bytes(36)))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    struct.pack_into("<I", content, at + 24, 2**32 - 2)  # bytes of the member, unpacked
    path.write_bytes(content)

    with expect_error(WeightsError, ErrorCode.UNREADABLE, mentions=["a.npz", str(2**32 - 2)]):
        load_weights(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_compressed_otherwise_is_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("ip/0.npy", npy("(1,)", data=bytes(4)))

    with expect_error(WeightsError, ErrorCode.UNREADABLE, mentions="'ip/0.npy'"):
        load_weights(tmp_path / "a.npz")


def test_a_header_of_nothing_but_brackets_is_refused(tmp_path):
    with expect_error(WeightsError, ErrorCode.UNREADABLE):
        load_weights(safetensors(tmp_path / "a.safetensors", b"[" * 100_000))


def test_tensors_in_the_same_bytes_are_refused(tmp_path):
    one = {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}
    header = {f"ip{i}/0": one for i in range(1000)}
    path = safetensors(tmp_path / "a.safetensors", header, bytes(4000))

    tracemalloc.start()
    with expect_error(WeightsError, ErrorCode.UNREADABLE, mentions="'ip1/0'"):
        load_weights(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert most < 2 << 20


@pytest.mark.parametrize(
    "about",
    [
        {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**64]},
        {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        [],
        None,
    ],
)
def test_a_header_that_describes_no_tensor_is_refused(tmp_path, about):
    with expect_error(WeightsError, ErrorCode.UNREADABLE):
        load_weights(safetensors(tmp_path / "a.safetensors", {"ip/0": about}, bytes(4)))


@pytest.mark.parametrize("name", ["ip", "ip/", "ip/x", "ip/-1", "ip/" + "9" * 5000, "ip/\u0661"])
def test_a_tensor_that_is_no_parameter_of_a_layer_is_refused(tmp_path, name):
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}

    with expect_error(WeightsError, ErrorCode.INVALID, got=name):
        load_weights(safetensors(tmp_path / "a.safetensors", header, bytes(4)))


def test_numpy_reads_what_is_written(tmp_path):
    file = io.BytesIO(npy("(2,)", data=bytes(8)))

    np.testing.assert_array_equal(np.load(file), np.zeros(2, np.float32))
