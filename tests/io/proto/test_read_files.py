"""Reading nets, solvers and weights from files, and what is said about files that are none."""

import logging
import os
import tracemalloc

import numpy as np
import pytest
from expect_error import expect_error
from google.protobuf.unknown_fields import UnknownFieldSet
from needs import needs

from demitasse.errors import DataError, ErrorCode, PrototxtError, SnapshotError, WeightsError
from demitasse.io.proto import (
    BlobProto,
    LayerParameter,
    NetParameter,
    SolverParameter,
    SolverState,
    floats,
    parse_text,
    read_binary,
    read_net_arrays,
    read_net_params,
    read_net_params_binary,
    read_solver_params,
    read_text,
    stored_shape,
    text_of,
    write_binary,
    write_text,
)


@pytest.fixture
def file(tmp_path):
    """Write a file and return its path."""

    def make(content, name="net.prototxt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


# -- text ----------------------------------------------------------------------------------------


def test_a_net_is_read(file):
    net = read_net_params(file('name: "net" layer { name: "ip" type: "InnerProduct" }'))

    assert net == NetParameter(name="net", layer=[{"name": "ip", "type": "InnerProduct"}])


def test_paths_may_be_strings(file):
    assert read_text(str(file("name: 'a'")), NetParameter).name == "a"


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(file):
    path = file(b"\xef\xbb\xbfname: 'a'\r\nforce_backward: true\r\n")

    assert read_net_params(path) == NetParameter(name="a", force_backward=True)


def test_a_missing_file_is_named(tmp_path):
    with expect_error(PrototxtError, ErrorCode.NOT_FOUND, mentions="gone.prototxt"):
        read_net_params(tmp_path / "gone.prototxt")


def test_a_relative_path_without_its_folder_names_the_working_directory(tmp_path, monkeypatch):
    """A solver names its net relative to the folder that Caffe is called from."""
    monkeypatch.chdir(tmp_path)

    with expect_error(PrototxtError, ErrorCode.NOT_FOUND, mentions=f"'net' in {tmp_path}"):
        read_net_params("net/train_val.prototxt")
    with expect_error(PrototxtError, ErrorCode.NOT_FOUND) as caught:
        read_net_params(tmp_path / "net" / "train_val.prototxt")

    assert "there is no folder" not in str(caught.value)


@needs("deletion of open files")
def test_a_relative_path_without_its_working_directory(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with expect_error(PrototxtError, ErrorCode.NOT_FOUND):
        read_net_params("net/train_val.prototxt")


def test_a_folder_names_the_prototxts_in_it(tmp_path):
    (tmp_path / "deploy.prototxt").write_text("")
    with expect_error(PrototxtError, mentions=f"a prototxt in it: {tmp_path / 'deploy.prototxt'}"):
        read_net_params(tmp_path)


def test_a_folder_is_no_file(tmp_path):
    with expect_error(PrototxtError, ErrorCode.UNREADABLE):
        read_net_params(tmp_path)


@pytest.mark.parametrize("content", ["", " \n\t"])
def test_an_empty_file_is_refused(file, content):
    with expect_error(PrototxtError, ErrorCode.MISSING, mentions="net.prototxt"):
        read_net_params(file(content))


def test_a_binary_file_is_no_prototxt(file):
    with expect_error(PrototxtError, ErrorCode.UNREADABLE):
        read_net_params(file(b"\x0a\x03net\x00"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_text_in_utf_16_is_told_from_binary_files(file, encoding):
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions=["UTF-16", "UTF-8"]):
        read_net_params(file("\ufeffname: 'a'".encode(encoding)))


def test_a_large_binary_file_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "weights.caffemodel"
    with path.open("wb") as sparse:
        sparse.truncate(1 << 30)
    tracemalloc.start()

    with expect_error(PrototxtError, ErrorCode.UNREADABLE):
        read_net_params(path)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_faults_carry_file_line_and_column(file):
    path = file("name: 'a'\nlayer { foo: 1 }\n")

    with expect_error(PrototxtError, ErrorCode.UNKNOWN, mentions="net.prototxt:2:9"):
        read_net_params(path)


def test_unknown_fields_of_files_are_skipped(file, caplog):
    path = file("foo: 1 max_iter: 3", "solver.prototxt")

    assert read_solver_params(path, ignore_unknown_fields=True).max_iter == 3
    assert "solver.prototxt:1:1" in caplog.text
    assert read_net_params(file("foo: 1"), ignore_unknown_fields=True) == NetParameter()


# -- upgrades on reading -------------------------------------------------------------------------


def test_upgrades_are_logged(file, caplog):
    caplog.set_level(logging.INFO, "demitasse.io.proto")

    net = read_net_params(file("input: 'data' input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4"))

    assert net.layer[0].type == "Input"
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert all(name in caplog.text for name in ("net.prototxt", "Input", "data"))


def test_what_an_upgrade_leaves_out_is_warned_about(file, caplog):
    read_net_params(file("layers { layer { name: 'a' type: 'relu' num_output: 3 } }"))

    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_upgrade_that_fails_names_the_file(file):
    with expect_error(
        PrototxtError, ErrorCode.UNKNOWN, mentions=["'a'", "net.prototxt"], field="type"
    ):
        read_net_params(file("layers { layer { name: 'a' type: 'konv' } }"))


# -- solvers -------------------------------------------------------------------------------------


def test_the_old_solver_type_is_read(file):
    solver = read_solver_params(file("solver_type: ADAGRAD"))

    assert solver.type == "AdaGrad"
    assert not solver.HasField("solver_type")


def test_both_solver_types_are_refused(file):
    with expect_error(
        PrototxtError,
        ErrorCode.CONFLICT,
        mentions=["net.prototxt", "solver_type", "ADAM"],
        field="solver_type",
    ):
        read_solver_params(file("solver_type: ADAM type: 'Adam'"))


def test_without_a_prefix_snapshots_are_named_after_the_solver_file(file):
    path = file("max_iter: 1", "lenet_solver.v2.prototxt")

    assert read_solver_params(path).snapshot_prefix == str(path.parent / "lenet_solver.v2")


@needs("names of any bytes")
@pytest.mark.parametrize("prefix", ["", "snapshot_prefix: '{}'"], ids=["none", "folder"])
def test_a_solver_file_whose_name_is_no_utf8_needs_a_prefix(tmp_path, prefix):
    path = tmp_path / os.fsdecode(b"caf\xe9.prototxt")
    path.write_text(f"max_iter: 1 {prefix.format(tmp_path.as_posix())}")

    with expect_error(PrototxtError, ErrorCode.INVALID, field="snapshot_prefix"):
        read_solver_params(path)

    path.write_text("max_iter: 1 snapshot_prefix: 'cafe'")
    assert read_solver_params(path).snapshot_prefix == "cafe"


def test_a_folder_as_prefix_gets_the_stem_of_the_solver_file(file, tmp_path):
    (tmp_path / "out").mkdir()
    path = file(f"snapshot_prefix: '{tmp_path.as_posix()}/out'", "lenet.prototxt")

    assert read_solver_params(path).snapshot_prefix == os.fspath(tmp_path / "out" / "lenet")


@pytest.mark.parametrize("prefix", ["snapshots/lenet", ""])
def test_any_other_prefix_is_kept(file, prefix):
    assert read_solver_params(file(f"snapshot_prefix: '{prefix}'")).snapshot_prefix == prefix


# -- binary --------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    net = NetParameter(name="net")
    net.layer.add(name="ip").blobs.add(data=[1, 2], shape={"dim": [2]})

    write_binary(tmp_path / "a.caffemodel", net)
    write_text(tmp_path / "a.prototxt", net)

    assert read_net_params_binary(tmp_path / "a.caffemodel") == net
    assert read_net_params(tmp_path / "a.prototxt") == net
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.caffemodel", "a.prototxt"]


def test_text_is_in_the_order_of_the_numbers():
    assert text_of(NetParameter(layer=[{"name": "é"}], name="b")).split("\n")[0] == 'name: "b"'


def test_a_message_that_lacks_something_required_is_not_written(tmp_path):
    path = tmp_path / "a.caffemodel"
    path.write_bytes(b"old")

    with expect_error(WeightsError, ErrorCode.MISSING, mentions="min"):
        write_binary(path, LayerParameter(clip_param={"max": 1}))

    assert path.read_bytes() == b"old"


def test_a_message_that_lacks_something_required_is_not_read(file):
    content = LayerParameter(clip_param={"max": 1}).SerializePartialToString()

    with expect_error(
        WeightsError, ErrorCode.MISSING, mentions="clip_param.min", field="clip_param.min"
    ):
        read_binary(file(content), LayerParameter)


def test_a_truncated_file_names_its_size(tmp_path):
    net = NetParameter()
    net.layer.add(name="ip").blobs.add(data=[0] * 100)
    path = tmp_path / "a.caffemodel"
    path.write_bytes(net.SerializeToString()[:-7])

    size = path.stat().st_size
    with expect_error(
        WeightsError,
        ErrorCode.UNREADABLE,
        mentions=[str(size), "NetParameter"],
        place=str(path),
    ):
        read_net_params_binary(path)


def test_an_enormous_claim_costs_nothing(file):
    claim = b"\xa2\x06\xff\xff\xff\xff\x07"  # a layer of two gigabytes, of which nothing follows

    with expect_error(WeightsError, ErrorCode.UNREADABLE, mentions=["7", "NetParameter"]):
        read_net_params_binary(file(claim))


@pytest.mark.parametrize(
    ("content", "code", "mentions"),
    [
        (b"", "invalid", "0 bytes"),
        (b"\x89HDF\r\n\x1a\n....", "unreadable", "HDF5"),
        (b"version https://git-lfs.github.com/spec/v1\n", "unreadable", "`git lfs pull`"),
        (b"PK\x03\x04archive/data.pkl", "unreadable", "`demitasse weights import`"),
        (b"\n<!doctype html><html>", "unreadable", "web page"),
        (b"PK\x03\x04....", "unreadable", "ZIP"),
        (b"name: 'net'\nlayer { name: 'a' }", "unreadable", "text"),
        (b'net: "net.prototxt"\nbase_lr: 0.01\n', "unreadable", "text"),
        (b"\xff\xff\xff", "unreadable", ["3 bytes", "NetParameter"]),
    ],
)
def test_files_of_another_kind_are_recognised(file, content, code, mentions):
    with expect_error(WeightsError, code, mentions=mentions):
        read_net_params_binary(file(content, "a.caffemodel"))


@pytest.mark.parametrize("read", [read_net_params_binary, read_net_arrays])
def test_weights_that_cannot_be_upgraded_are_bad_weights(tmp_path, read):
    net = NetParameter(input=["x"], input_dim=[1, 3])
    write_binary(tmp_path / "a.caffemodel", net)

    with expect_error(
        WeightsError,
        ErrorCode.COUNT_MISMATCH,
        mentions=["a.caffemodel", "1", "2", "input_dim"],
        field="input_dim",
    ):
        read(tmp_path / "a.caffemodel")


@pytest.mark.parametrize("error", [WeightsError, DataError, SnapshotError])
def test_the_caller_chooses_the_exception(tmp_path, error):
    with expect_error(error, ErrorCode.NOT_FOUND):
        read_binary(tmp_path / "gone", BlobProto, error)


# -- recorded files ------------------------------------------------------------------------------


KINDS = {".caffemodel": NetParameter, ".solverstate": SolverState, ".binaryproto": BlobProto}
# Fields that forks put into the trained models of the reference data.
FORK_FIELDS = {
    "libfacedetection_v1_ssd": {145, 146, 147, 148, 208, 210, 213},
    "mtcnn_det1": {3},
    "mtcnn_det2": {4},
    "waifu2x_upresnet10": {149},
}


def unknown(message):
    """The numbers of all fields in a message, and in its parts, that it does not know."""
    found = {field.field_number for field in UnknownFieldSet(message)}
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = [value] if hasattr(value, "DESCRIPTOR") else value
            found.update(*(unknown(part) for part in parts))
    return found


def test_recorded_binary_files_hold_nothing_unknown_but_what_forks_added(reference_data):
    paths = [path for kind in KINDS for path in sorted(reference_data.rglob(f"*{kind}"))]

    found = {path: unknown(read_binary(path, KINDS[path.suffix])) for path in paths}

    for path, numbers in found.items():
        assert numbers == FORK_FIELDS.get(path.parent.name, set()), path
    assert len(paths) > 60


def test_recorded_weights_of_the_old_format_are_upgraded(reference_data):
    path = reference_data / "models/lenet_mnist_v1/lenet_iter_10000.caffemodel"

    net = read_net_params_binary(path)

    shapes = {
        layer.name: [stored_shape(b) for b in layer.blobs] for layer in net.layer if layer.blobs
    }
    assert shapes == {
        "conv1": [(20, 1, 5, 5), (1, 1, 1, 20)],
        "conv2": [(50, 20, 5, 5), (1, 1, 1, 50)],
        "ip1": [(1, 1, 500, 800), (1, 1, 1, 500)],
        "ip2": [(1, 1, 10, 500), (1, 1, 1, 10)],
    }
    assert not net.layers
    assert {layer.type for layer in net.layer} >= {"Convolution", "InnerProduct", "SoftmaxWithLoss"}
    for layer in net.layer:
        for blob in layer.blobs:
            assert floats(blob).size == np.prod(stored_shape(blob))


def test_text_that_we_write_is_read_back(reference_data):
    for path in sorted((reference_data / "prototxt_gold").rglob("*.upgraded")):
        if "solver" not in path.name:
            net = read_net_params(path)

            assert parse_text(text_of(net), NetParameter) == net


def test_solvers_are_read_from_recorded_files(reference_data):
    solver = read_solver_params(reference_data / "models/lenet_mnist_v1/lenet_solver.prototxt")

    assert isinstance(solver, SolverParameter)
    assert solver.base_lr == pytest.approx(0.01)
