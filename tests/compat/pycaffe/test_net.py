"""``caffe.Net`` over the engine, as scripts written for Caffe use it."""

import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from expect_error import expect_error, expect_warning

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import _caffe
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError, ShapeError, WeightsError

pytestmark = pytest.mark.usefixtures("folder")


def test_a_net_shows_its_parts(on_backend):
    net = caffe.Net("net.prototxt", caffe.TRAIN)

    assert net.inputs == ["data", "label"]
    assert net.outputs == ["loss"]
    assert (net._input_list, net._output_list) == (net.inputs, net.outputs)
    assert list(net.blobs) == net._blob_names == ["data", "label", "ip", "loss"]
    assert net.top_names["ip"] == ["ip"]
    assert net.bottom_names["loss"] == ["ip", "label"]
    assert (net._bottom_ids(3), net._top_ids(3)) == ([2, 1], [3])
    assert (net._inputs, net._outputs) == ([0, 1], [3])
    assert list(net._layer_names) == ["data", "label", "ip", "loss"]
    assert net.layer_dict["ip"].type == "InnerProduct"
    assert [b.shape for b in net.layers[2].blobs] == [(3, 6), (3,)]
    assert list(net.blobs["data"].shape) == [4, 6]
    assert (net.blobs["data"].num, net.blobs["data"].channels, net.blobs["data"].width) == (4, 6, 1)
    assert net._blob_loss_weights == [0, 0, 0, 1]
    assert net.blob_loss_weights["loss"] == 1
    assert net._layer_need_backward == [False, False, True, True]
    assert net._memory_used == (24 + 4 + 12 + 1) * 4


def test_both_ways_to_make_a_net(folder):
    caffe.Net("net.prototxt", caffe.TEST).save("w.caffemodel")

    newer = caffe.Net("net.prototxt", caffe.TEST, weights="w.caffemodel")
    older = caffe.Net("net.prototxt", "w.caffemodel", caffe.TEST)

    np.testing.assert_array_equal(newer.params["ip"][0].data, older.params["ip"][0].data)


def test_stages_choose_layers():
    net = caffe.Net("net.prototxt", caffe.TEST, stages=["extra"], level=1)

    assert "extra" in net.layer_dict


def test_arguments_may_be_named_and_files_given_in_any_way(folder):
    caffe.Net(b"net.prototxt", caffe.TEST).save(b"w.caffemodel")

    named = caffe.Net(
        network_file=Path("net.prototxt"), phase=np.int64(1), weights=Path("w.caffemodel")
    )
    older = caffe.Net(Path("net.prototxt"), b"w.caffemodel", phase=1)

    np.testing.assert_array_equal(named.params["ip"][0].data, older.params["ip"][0].data)


def test_other_ways_are_refused():
    with expect_error(TypeError, mentions="Net(file, )"):
        caffe.Net("net.prototxt")
    with expect_error(TypeError, mentions="wrong=1"):
        caffe.Net("net.prototxt", caffe.TEST, wrong=1)
    with expect_error(TypeError, mentions="Net"):
        caffe.Net("net.prototxt", "w.caffemodel", caffe.TEST, 3)
    with expect_error(ConfigError, mentions=["TRAIN", "TEST", "5"]):
        caffe.Net("net.prototxt", 5)
    with expect_error(TypeError, mentions=["Net(file, phase", "'test'"]):
        caffe.Net("net.prototxt", "w.caffemodel", "test")
    with expect_error(TypeError, mentions=["Net(file, phase", "'w.caffemodel'"]):
        caffe.Net("net.prototxt", caffe.TEST, "w.caffemodel")  # the place of the level


def test_a_missing_phase_is_named():
    with expect_error(TypeError, mentions=["caffe.TRAIN", "caffe.TEST"]):
        caffe.Net("net.prototxt", "w.caffemodel")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("set_phase_test", "Net(file, weights, caffe.TEST)"),
        ("set_mode_gpu", "caffe.set_mode_gpu()"),
        ("set_raw_scale", "caffe.io.Transformer"),
    ],
)
def test_methods_of_the_first_versions_say_what_is_in_their_place(name, instead):
    net = caffe.Net("net.prototxt", caffe.TEST)

    with expect_error(AttributeError, mentions=["'Net'", f"'{name}'", instead]):
        getattr(net, name)


def test_other_names_have_nothing_in_their_place():
    net = caffe.Net("net.prototxt", caffe.TEST)

    assert not hasattr(net, "set_nothing")


def test_files_that_are_not_there_are_runtime_errors():
    with expect_error(RuntimeError, mentions="missing.prototxt"):
        caffe.Net("missing.prototxt", caffe.TEST)
    with expect_error(RuntimeError, mentions="missing.caffemodel"):
        caffe.Net("net.prototxt", caffe.TEST, weights="missing.caffemodel")


def test_the_first_scripts_set_the_phase_for_all_nets():
    caffe.set_phase_test()
    tested = caffe.Net("net.prototxt")
    caffe.set_phase_train()
    trained = caffe.Net("net.prototxt")

    assert (tested.outputs, trained.outputs) == (["prob"], ["loss"])


def test_forward_returns_live_views_of_the_outputs_and_what_is_asked_for(on_backend):
    net = caffe.Net("net.prototxt", caffe.TEST)
    items = np.random.default_rng(0).random((4, 6), np.float32)

    out = net.forward(["ip"], data=items)
    before = out["prob"].copy()
    net.blobs["data"].data[...] = 0
    net.forward()

    assert set(out) == {"prob", "ip"}
    np.testing.assert_allclose(before.sum(axis=1), np.ones(4), rtol=1e-5)
    np.testing.assert_allclose(out["prob"], np.full((4, 3), 1 / 3), rtol=1e-5)


def test_forward_and_backward_in_part(on_backend):
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.blobs["data"].data[...] = 1

    ip = net.forward(end="ip")
    prob = net.forward(start="prob")

    assert set(ip) == {"ip"}
    assert set(prob) == {"prob"}


def test_backward_returns_gradients(folder, on_backend):
    file = folder / "net.prototxt"
    file.write_text(file.read_text() + "force_backward: true")
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.forward(data=np.ones((4, 6)))

    gradients = net.backward(["ip"], prob=np.eye(4, 3))

    assert set(gradients) == {"data", "ip"}
    assert gradients["data"].any()
    assert set(net.backward(end="prob")) == {"ip"}


def test_inputs_and_outputs_are_checked():
    net = caffe.Net("net.prototxt", caffe.TEST)

    with expect_error(NetError, expected=["data"], got=["image"]):
        net.forward(image=np.zeros((4, 6)))
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="data", got=(5, 6)):
        net.forward(data=np.zeros((5, 6)))
    for shape in [(4, 7), (4, 6, 1), (4, 1, 6)]:
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="data", expected=(4, 6)):
            net.forward(data=np.zeros(shape))
    with expect_error(NetError, expected=["prob"], got=["loss"]):
        net.backward(loss=np.zeros(1))


def test_forward_all_takes_any_number_of_items():
    net = caffe.Net("net.prototxt", caffe.TEST)
    items = np.random.default_rng(0).random((10, 6), np.float32)

    out = net.forward_all(["ip"], data=items)

    assert out["prob"].shape == (10, 3)
    one_by_one = [net.forward(data=np.tile(item, (4, 1)))["prob"][0].copy() for item in items]
    np.testing.assert_allclose(out["prob"], one_by_one, rtol=1e-5)


def test_forward_all_of_a_net_with_a_loss_has_its_value_for_each_batch():
    net = caffe.Net("net.prototxt", caffe.TRAIN)
    data, label = np.random.default_rng(0).random((8, 6)), np.arange(8) % 3

    out = net.forward_all(["ip"], data=data, label=label)

    assert out["ip"].shape == (8, 3)
    batches = [slice(0, 4), slice(4, 8)]
    want = [float(net.forward(data=data[b], label=label[b])["loss"]) for b in batches]
    assert out["loss"].tolist() == want
    outs, _ = net.forward_backward_all(data=data, label=label)
    assert outs["loss"].tolist() == want


def test_forward_all_needs_as_many_items_of_each_input():
    net = caffe.Net("net.prototxt", caffe.TRAIN)  # data and label, 4 items

    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, got={"data": 8, "label": 6}):
        net.forward_all(data=np.zeros((8, 6)), label=np.zeros(6))
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, mentions="forward()"):
        net.forward_all()
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, mentions="forward()"):
        net.forward_backward_all(["ip"])
    with expect_error(NetError, ErrorCode.MISSING, got=["image"]):
        net.forward_all(image=np.zeros((8, 6)))


def test_reshaping_and_surgery(on_backend):
    net = caffe.Net("net.prototxt", caffe.TEST)

    net.blobs["data"].reshape(2, 6)
    net.reshape()
    net.params["ip"][1].data[...] = [0, 100, 0]
    net.forward()

    assert net.blobs["prob"].data.shape == (2, 3)
    np.testing.assert_allclose(net.blobs["prob"].data[:, 1], [1, 1])


def test_weights_are_copied_and_shared(on_backend):
    one, two = (caffe.Net("net.prototxt", caffe.TEST) for _ in range(2))

    one.save("w.caffemodel")
    two.copy_from("w.caffemodel")
    copied = two.params["ip"][0].data.copy()
    two.share_with(one)
    one.params["ip"][0].data[...] = 7

    assert not (copied == 7).any()
    assert (two.params["ip"][0].data == 7).all()


def test_layers_of_a_file_that_the_net_lacks_are_logged(folder, caplog):
    caplog.set_level("INFO", "demitasse")
    caffe.Net("net.prototxt", caffe.TEST).save("w.caffemodel")
    text = Path("net.prototxt").read_text().replace('name: "ip"', 'name: "other"')
    Path("other.prototxt").write_text(text)
    line = "Ignoring source layer ip"

    with expect_warning(RuntimeWarning, mentions=["keep initial values"]):
        net = caffe.Net("other.prototxt", "w.caffemodel", caffe.TEST)
    assert [record.getMessage() for record in caplog.records].count(line) == 1
    net.copy_from("w.caffemodel")
    assert [record.getMessage() for record in caplog.records].count(line) == 2
    Path("solver.prototxt").write_text('net: "other.prototxt" base_lr: 1 lr_policy: "fixed"')
    caffe.SGDSolver("solver.prototxt").net.copy_from("w.caffemodel")
    assert [record.getMessage() for record in caplog.records].count(line) == 3


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_a_caffemodel_is_not_written_where_it_could_not_be_read(name, folder):
    with expect_error(WeightsError, ErrorCode.CONFLICT, file=name):
        caffe.Net("net.prototxt", caffe.TEST).save(name)

    assert not (folder / name).exists()


@pytest.mark.parametrize("name", ["w", "w.weights", "w.h5"])
def test_a_caffemodel_is_written_under_any_other_name(name):
    one, two = (caffe.Net("net.prototxt", caffe.TEST) for _ in range(2))

    one.save(name)
    two.copy_from(name)

    assert Path(name).read_bytes()[:1] == b"\n"  # a message's first field
    np.testing.assert_array_equal(one.params["ip"][0].data, two.params["ip"][0].data)


def test_callbacks_are_called_with_the_layers_index():
    net, seen = caffe.Net("net.prototxt", caffe.TEST), []
    net.before_forward(lambda i: seen.append(("before", i)))
    net.after_forward(lambda i: seen.append(("after", i)))

    net.forward(start="ip")

    assert seen[:2] == [("before", 1), ("after", 1)]


def test_inputs_are_broadcast():
    net = caffe.Net("net.prototxt", caffe.TEST)

    net.forward(data=np.arange(4)[:, None])

    np.testing.assert_array_equal(net.blobs["data"].data, np.tile(np.arange(4)[:, None], 6))


def test_forward_and_backward_of_any_number_of_items(folder):
    file = folder / "net.prototxt"
    file.write_text(file.read_text() + "force_backward: true")
    net = caffe.Net("net.prototxt", caffe.TEST)
    items = np.random.default_rng(0).random((6, 6), np.float32)

    blobs, diffs = net.forward_backward_all(["ip"], ["ip"], data=items, prob=np.eye(6, 3))

    assert {name: array.shape for name, array in blobs.items()} == {"prob": (6, 3), "ip": (6, 3)}
    assert {name: array.shape for name, array in diffs.items()} == {"data": (6, 6), "ip": (6, 3)}
    net.forward(data=items[:4])
    alone = net.backward(prob=np.eye(4, 3))
    np.testing.assert_allclose(diffs["data"][:4], alone["data"], rtol=1e-5)


def test_parameters_are_a_vector_of_blobs():
    net = caffe.Net("net.prototxt", caffe.TEST)

    params = net.params["ip"]

    assert isinstance(params, _caffe.BlobVec)
    assert len(params) == 2
    assert [tuple(blob.shape) for blob in params] == [(3, 6), (3,)]
    assert params[-1] is params[1:][0] is net.layers[1].blobs[1]
    assert isinstance(params[0], _caffe.Blob)
    assert params[0].reshape(3, 6) is None


@pytest.mark.parametrize("place", [lambda net: net.params["ip"], lambda net: net.layers[1].blobs])
def test_a_blob_may_be_put_in_the_place_of_a_parameter(place, tmp_path):
    net, other = caffe.Net("net.prototxt", caffe.TEST), caffe.Net("net.prototxt", caffe.TEST)
    items = np.ones(net.blobs["data"].shape, np.float32)
    other.params["ip"][0].data[...] = np.arange(18).reshape(3, 6)
    expected = other.forward(data=items)["prob"].copy()

    place(net)[0] = place(other)[0]
    place(net)[1] = place(other)[1]

    np.testing.assert_array_equal(net.forward(data=items)["prob"], expected)
    other.params["ip"][0].data[...] = 3
    assert (net.params["ip"][0].data == 3).all()
    net.save(str(tmp_path / "saved.caffemodel"))
    saved = caffe.Net("net.prototxt", str(tmp_path / "saved.caffemodel"), caffe.TEST)
    assert (saved.params["ip"][0].data == 3).all()


def test_a_blob_of_another_size_is_refused_in_the_place_of_a_parameter():
    net = caffe.Net("net.prototxt", caffe.TEST)

    with pytest.raises(ShapeError):
        net.params["ip"][0] = net.params["ip"][1]


@pytest.mark.parametrize(
    "change",
    [
        lambda params: params.append(params[0]),
        lambda params: params.add_blob(3),
        lambda params: params.__setitem__(0, np.zeros((3, 6))),
        lambda params: params.__delitem__(0),
    ],
)
def test_a_layer_keeps_the_parameters_that_it_was_made_with(change):
    net = caffe.Net("net.prototxt", caffe.TEST)
    before = list(net.params["ip"])

    with expect_error(NetError, ErrorCode.READ_ONLY):
        change(net.params["ip"])

    assert net.params["ip"] == before


def test_vectors_have_the_names_of_the_compiled_module():
    net = caffe.Net("net.prototxt", caffe.TEST)

    assert isinstance(net.layers, _caffe.LayerVec)
    assert isinstance(net._blobs, _caffe.BlobVec)
    assert isinstance(net._layer_names, _caffe.StringVec)
    assert isinstance(net._bottom_ids(1), _caffe.IntVec)
    assert isinstance(net._blob_loss_weights, _caffe.DtypeVec)
    assert isinstance(net._layer_need_backward, _caffe.BoolVec)


MEMORY = """
layer { name: "rows" type: "MemoryData" top: "data" top: "label"
        memory_data_param { batch_size: 2 channels: 3 height: 1 width: 2 } }
"""


def test_scripts_that_compare_types_take_the_branch_of_caffe():
    net = caffe.Net("net.prototxt", caffe.TRAIN)

    for vector in (net.params["ip"], net.layers[2].blobs, net.layer_dict["ip"].blobs, net._blobs):
        assert type(vector) is _caffe.BlobVec
    assert type(net.params["ip"][0]) is type(net.blobs["ip"]) is _caffe.Blob is caffe._caffe.Blob
    assert type(net) is _caffe.Net is caffe.Net
    assert type(net.layers) is _caffe.LayerVec
    assert type(net._inputs) is type(net._bottom_ids(3)) is _caffe.IntVec
    assert type(net._layer_names) is _caffe.StringVec
    assert type(net._blob_loss_weights) is _caffe.DtypeVec
    assert all(isinstance(layer, caffe.Layer) for layer in net.layers)
    assert not isinstance(net, caffe.Layer)
    assert not issubclass(type(net.layers[2]), caffe.Layer)


def test_arrays_are_the_input_of_a_memory_layer(folder):
    (folder / "memory.prototxt").write_text(MEMORY)
    net = caffe.Net("memory.prototxt", caffe.TEST)
    rows = np.random.default_rng(0).random((4, 3, 1, 2), np.float32)

    net.set_input_arrays(rows, np.arange(4, dtype=np.float32))
    net.forward()
    net.forward()

    np.testing.assert_array_equal(net.blobs["data"].data, rows[2:])
    np.testing.assert_array_equal(net.blobs["label"].data, [2, 3])
    with pytest.raises(DataError):
        net.set_input_arrays(rows[:3], np.arange(3, dtype=np.float32))


def test_arrays_need_a_memory_layer():
    net = caffe.Net("net.prototxt", caffe.TEST)

    with expect_error(NetError, layer="data", mentions="Input"):
        net.set_input_arrays(np.zeros((4, 6)), np.zeros(4))


def test_weights_go_through_hdf5():
    pytest.importorskip("h5py", reason="HDF5 files are read and written by h5py")
    one, two = (caffe.Net("net.prototxt", caffe.TEST) for _ in range(2))

    one.save_hdf5("w.h5")
    two.load_hdf5("w.h5")

    np.testing.assert_array_equal(one.params["ip"][0].data, two.params["ip"][0].data)


def test_other_libraries_get_addresses_on_the_gpu(monkeypatch):
    def at(address):
        return lambda blob: SimpleNamespace(__cuda_array_interface__={"data": (address, False)})

    blob = caffe.Net("net.prototxt", caffe.TEST).blobs["data"]
    monkeypatch.setattr(_caffe.Blob, "mutable_gpu_data", at(16))
    monkeypatch.setattr(_caffe.Blob, "mutable_gpu_diff", at(32))

    assert (blob._gpu_data_ptr, blob._gpu_diff_ptr) == (16, 32)


def test_on_a_cpu_there_are_none():
    blob = caffe.Net("net.prototxt", caffe.TEST).blobs["data"]

    assert not hasattr(blob, "_gpu_data_ptr")


def test_threads_that_share_a_net_get_their_own_results_or_an_error(folder):
    net, found = caffe.Net("net.prototxt", caffe.TEST), {}
    inputs = [np.full((8, 6), number, np.float32) for number in range(1, 5)]
    alone = [net.forward_all(data=data)["prob"] for data in inputs]

    def often(number):
        results = found[number] = []
        for _ in range(20):
            with contextlib.suppress(NetError):
                results.append(net.forward_all(data=inputs[number])["prob"])

    threads = [threading.Thread(target=often, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(map(len, found.values())) > 0
    for number, results in found.items():
        for result in results:
            np.testing.assert_array_equal(result, alone[number])
