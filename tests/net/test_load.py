"""Weights from files: what fits, what does not, and what becomes of the rest."""

import numpy as np
import pytest
from expect_error import expect_error

import demitasse
from demitasse import Net, Solver
from demitasse.errors import ConfigError, PrototxtError, ShapeError, WeightsError
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.io.weights.formats import FORMATS, read_weights, write_weights

NET = """
name: "two"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "h"
        inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "ip2" type: "InnerProduct" bottom: "h" top: "y"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""
OTHER = NET.replace("num_output: 3", "num_output: 4")
FEWER = NET.replace("num_output: 3", "num_output: 3 bias_term: false")


def net_of(text=NET, seed=1, device="numpy"):
    return Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=seed)


def values(net):
    return {name: [b.cpu_data().copy() for b in blobs] for name, blobs in net.params.items()}


@pytest.fixture(params=["message", "caffemodel", "HDF5", "npz", "safetensors"])
def saved(request, tmp_path):
    """Give the parameters of a net as a message or a file."""

    def save(net):
        if request.param == "message":
            return net.to_proto()
        if request.param == "HDF5":
            pytest.importorskip("h5py")
            net.save_hdf5(tmp_path / "w.caffemodel.h5")
            return tmp_path / "w.caffemodel.h5"
        net.save(tmp_path / "w.caffemodel")
        if request.param == "caffemodel":
            return tmp_path / "w.caffemodel"
        file = tmp_path / f"w.caffemodel.{request.param}"
        write_weights(file, request.param, read_weights(tmp_path / "w.caffemodel"))
        return file

    return save


@pytest.mark.parametrize(
    ("text", "names"),
    [(OTHER, ["'ip2'", "4 5"]), (FEWER, ["'ip2'", "1", "2"])],
)
def test_what_does_not_fit_can_be_left_out(saved, text, names, backend):
    net, source = net_of(device=backend), net_of(text, seed=2, device=backend)
    before = values(net)

    report = net.load(saved(source), on_mismatch="skip")

    assert (report.loaded, report.missing, report.ignored) == (["ip1"], ["ip2"], [])
    assert list(report.mismatched) == ["ip2"]
    assert all(name in report.mismatched["ip2"] for name in names)
    after = values(net)
    for name, wanted in (("ip1", values(source)["ip1"]), ("ip2", before["ip2"])):
        for mine, theirs in zip(after[name], wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("text", "error"), [(OTHER, ShapeError), (FEWER, WeightsError)])
def test_without_leave_it_is_refused_and_nothing_changes(saved, text, error):
    net = net_of()
    before = values(net)

    with expect_error(error, mentions="on_mismatch='skip'"):
        net.load(saved(net_of(text, seed=2)))

    for name, wanted in before.items():
        for mine, theirs in zip(values(net)[name], wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_refusal_names_the_file(saved):
    file = saved(net_of(FEWER))
    if isinstance(file, NetParameter):
        pytest.skip("a message is not a file")

    with expect_error(WeightsError, mentions=["w.caffemodel", "'ip2'"]):
        net_of().load(file)


@pytest.mark.parametrize("last", [OTHER, NET])
def test_of_a_layer_that_a_file_has_twice_the_last_one_counts(last):
    first = OTHER if last is NET else NET
    message, more = net_of(first, seed=2).to_proto(), net_of(last, seed=3).to_proto()
    message.layer.append(more.layer[2])
    net = net_of()
    before = values(net)["ip2"][0]

    report = net.load(message, on_mismatch="skip")

    fits = last is NET
    assert ("ip2" in report.loaded, "ip2" in report.mismatched) == (fits, not fits)
    wanted = values(net_of(last, seed=3))["ip2"][0] if fits else before
    np.testing.assert_array_equal(values(net)["ip2"][0], wanted)


def test_a_wrong_word_is_refused():
    with expect_error(ConfigError, mentions=["'raise'", "'skip'", "'ignore'"]):
        net_of().load(net_of().to_proto(), on_mismatch="ignore")


def test_axes_of_one_are_pointed_at():
    source = net_of().to_proto()
    source.layer[2].blobs[1].shape.dim[:] = [1, 1, 3]

    with expect_error(ShapeError, mentions="1 1 3"):
        net_of().load(source)


def test_gradients_are_checked_before_anything_changes():
    net = net_of()
    source = net_of(seed=2).to_proto(write_diff=True)
    source.layer[2].blobs[1].diff.append(1.0)
    before = values(net)

    with expect_error(WeightsError, mentions=["4", "3"]):
        net.load(source)

    np.testing.assert_array_equal(values(net)["ip1"][0], before["ip1"][0])


def test_hdf5_weights_that_are_no_numbers_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    net = net_of()
    net.save_hdf5(tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "a") as file:
        del file["data/ip2/1"]
        file["data/ip2/1"] = np.array([b"a", b"b", b"c"])
    before = values(net)

    with expect_error(WeightsError, mentions="parameter 1 of layer 'ip2'"):
        net_of(seed=4).load(tmp_path / "w.h5")

    np.testing.assert_array_equal(values(net)["ip1"][0], before["ip1"][0])


SCALES = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "a" type: "Scale" bottom: "x" top: "a" PARAM_A scale_param { bias_term: true } }
layer { name: "b" type: "Scale" bottom: "a" top: "b" PARAM_B scale_param { bias_term: true } }
"""


def scales(shared_a="", shared_b=""):
    """Make a net whose factors and offsets have equal shapes, each perhaps shared by name."""
    text = SCALES.replace("PARAM_A", shared_a).replace("PARAM_B", shared_b)
    net = net_of(text)
    for number, blob in enumerate(net.learnable_params, 1):
        blob.data[...] = number
    return net


FACTOR = 'param { name: "factor" }'
BOTH = FACTOR + 'param { name: "offset" }'


@pytest.mark.parametrize("shared", [FACTOR, BOTH])
def test_hdf5_weights_hold_a_shared_parameter_once(tmp_path, shared):
    h5py = pytest.importorskip("h5py")
    net = scales(shared, shared)
    net.save_hdf5(tmp_path / "w.h5", write_diff=True)
    other = scales(shared, shared)
    for blob in other.learnable_params:
        blob.data[...] = 0

    other.load(tmp_path / "w.h5")

    with h5py.File(tmp_path / "w.h5") as file:
        assert list(file["data/b"]) == ([] if shared == BOTH else ["1"])
        assert list(file["diff/b"]) == ["0", "1"]  # as in Caffe
    for mine, theirs in zip(other.learnable_params, net.learnable_params, strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_hdf5_weights_of_a_net_that_shares_more(tmp_path):
    """What the file does not have must be shared in the net, whatever else is."""
    pytest.importorskip("h5py")
    scales('param {} param { name: "offset" }', 'param {} param { name: "offset" }').save_hdf5(
        tmp_path / "w.h5"
    )
    net = scales(BOTH, BOTH)

    net.load(tmp_path / "w.h5")

    assert net.params["b"][0].data[0] == 3


def test_hdf5_weights_are_matched_by_their_numbers(tmp_path):
    pytest.importorskip("h5py")
    offset = 'param {} param { name: "offset" }'
    scales(offset, offset).save_hdf5(tmp_path / "w.h5")

    with expect_error(WeightsError, mentions="'b'"):
        scales(FACTOR, FACTOR).load(tmp_path / "w.h5")


@pytest.mark.parametrize("kind", ["h5", "npz", "safetensors"])
def test_an_export_keeps_the_numbers_of_parameters(tmp_path, kind):
    pytest.importorskip("h5py")
    offset, file = 'param {} param { name: "offset" }', tmp_path / f"w.{kind}"
    scales(offset, offset).save_hdf5(tmp_path / "shared.h5")

    write_weights(file, kind, read_weights(tmp_path / "shared.h5"))

    assert not scales(offset, offset).load(file).missing


def test_a_caffemodel_cannot_leave_a_parameter_out(tmp_path):
    weights = {"one": {1: np.ones(3, np.float32)}}

    with expect_error(WeightsError, mentions="'one'"):
        write_weights(tmp_path / "w.caffemodel", "caffemodel", weights)


@pytest.mark.parametrize("kind", FORMATS)
def test_parameters_in_four_axes_fit_as_in_old_files(tmp_path, kind):
    net, weights = net_of(), {}
    for name, arrays in values(net).items():
        four = [a.reshape((1,) * (4 - a.ndim) + a.shape) for a in arrays]
        weights[name] = dict(enumerate(four))
    write_weights(tmp_path / f"w.{kind}", kind, weights)
    other = net_of(seed=2)

    other.load(tmp_path / f"w.{kind}")

    for name, arrays in values(net).items():
        for mine, theirs in zip(values(other)[name], arrays, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_biases_of_c3d_have_five_axes():
    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 1, 2, 4, 4] } } }'
        'layer { name: "conv" type: "Convolution3D" bottom: "x" top: "y" convolution3d_param '
        "{ num_output: 2 kernel_size: 3 kernel_depth: 2 } }"
    )
    net, stored = net_of(text), NetParameter()
    layer = stored.layer.add(name="conv", type="Convolution3D")
    layer.blobs.add(shape={"dim": [2, 1, 2, 3, 3]}, data=range(36))
    layer.blobs.add(shape={"dim": [1, 1, 1, 1, 2]}, data=[1, 2])

    assert net.load(stored).loaded == ["conv"]
    assert net.params["conv"][1].data.tolist() == [1, 2]


def test_hdf5_weights_with_a_gap_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    scales().save_hdf5(tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "a") as file:
        file["data/b"].move("1", "2")

    with expect_error(WeightsError, mentions=["'b'", "0, 2", "0, 1"]):
        scales().load(tmp_path / "w.h5")


@pytest.mark.parametrize("name", ["01", "one", "9" * 5000])
def test_hdf5_parameters_must_be_numbered(tmp_path, name):
    h5py = pytest.importorskip("h5py")
    net_of().save_hdf5(tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "a") as file:
        file["data/ip2"].move("1", name)

    with expect_error(WeightsError, mentions="'ip2'"):
        demitasse.load_weights(tmp_path / "w.h5")


@pytest.mark.parametrize("kind", ["SoftLink", "ExternalLink"])
def test_links_in_hdf5_weights_are_not_passed_over(tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    net_of().save_hdf5(tmp_path / "real.h5")
    net_of().save_hdf5(tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "a") as file:
        del file["data/ip2"]
        target = ("/data/ip1",) if kind == "SoftLink" else ("real.h5", "/data/ip2")
        file["data/ip2"] = getattr(h5py, kind)(*target)

    with expect_error(WeightsError, mentions=["w.h5", "data/ip2"]):
        net_of().load(tmp_path / "w.h5")


def test_hdf5_data_must_be_a_group(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["data"] = np.zeros(3)

    with expect_error(WeightsError, mentions="'data'"):
        net_of().load(tmp_path / "w.h5")


@pytest.mark.parametrize("fmt", ["BINARYPROTO", "HDF5"])
def test_a_solver_state_given_as_weights_is_told_apart(tmp_path, fmt):
    pytest.importorskip("h5py")
    text = f'base_lr: 1 lr_policy: "fixed" snapshot_format: {fmt} net_param {{ {NET} }}'
    solver = Solver(parse_text(text, SolverParameter), device="numpy")
    _, state = solver.snapshot(tmp_path / "s")

    with expect_error(WeightsError, mentions="caffemodel"):
        demitasse.load_weights(state)


def test_weights_of_a_solver_may_leave_out_layers(tmp_path, caplog):
    net_of(OTHER, seed=2).save(tmp_path / "w.caffemodel")
    weights = (tmp_path / "w.caffemodel").as_posix()
    text = f'base_lr: 1 lr_policy: "fixed" weights: "{weights}" net_param {{ {NET} }}'
    param = parse_text(text, SolverParameter)

    with expect_error(ShapeError, mentions="on_mismatch='skip'"):
        Solver(param, device="numpy")
    solver = Solver(param, device="numpy", on_mismatch="skip")

    wanted = values(net_of(OTHER, seed=2))["ip1"][0]
    np.testing.assert_array_equal(solver.net.params["ip1"][0].cpu_data(), wanted)
    assert "parameter 0 of layer 'ip2'" in caplog.text


ENDINGS = {
    "w.npz": b"PK", "w.safetensors": b"", "w.h5": b"\x89HDF", "w.caffemodel.h5": b"\x89HDF",
    "w.caffemodel": b"\x0a\x03two", "w": b"\x0a\x03two", "w.weights": b"\x0a\x03two",
}  # fmt: skip
"""How files begin that are saved under these names."""


@pytest.mark.parametrize("name", ENDINGS)
def test_the_ending_says_in_which_format_a_net_is_saved(name, tmp_path, backend):
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    source, net = net_of(device=backend), net_of(seed=2, device=backend)

    source.save(tmp_path / name)
    report = net.load(tmp_path / name)

    assert (tmp_path / name).read_bytes().startswith(ENDINGS[name])
    assert report.loaded == ["ip1", "ip2"]
    for layer, wanted in values(source).items():
        for mine, theirs in zip(values(net)[layer], wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert [file.name for file in tmp_path.iterdir()] == [name]  # nothing unfinished beside it


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_arrays_are_saved_as_weights_export_writes_them(name, tmp_path):
    net = net_of()
    net.save(tmp_path / "w.caffemodel")
    write_weights(tmp_path / f"exported_{name}", name[2:], read_weights(tmp_path / "w.caffemodel"))

    net.save(tmp_path / name)

    mine, theirs = (read_weights(tmp_path / file) for file in (name, f"exported_{name}"))
    assert [*mine] == [*theirs]
    for layer, arrays in mine.items():
        assert [*arrays] == [*theirs[layer]]
        for index, array in arrays.items():
            np.testing.assert_array_equal(array, theirs[layer][index])


def test_shared_weights_come_back_from_every_format(tmp_path):
    text = NET.replace("num_output: 5", "num_output: 6").replace("num_output: 3", "num_output: 6")
    text = text.replace("inner_product_param", 'param { name: "w" } inner_product_param')
    source = net_of(text)

    for name in ("w.npz", "w.safetensors", "w.caffemodel"):
        net = net_of(text, seed=2)
        source.save(tmp_path / name)
        net.load(tmp_path / name)

        for layer, wanted in values(source).items():
            for mine, theirs in zip(values(net)[layer], wanted, strict=True):
                np.testing.assert_array_equal(mine, theirs)


TWICE = NET.replace("ip2", "ip1")


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("w.h5", TWICE, "2 of the layers with parameters named 'ip1'"),
        ("w.npz", TWICE, "'ip1'"),
        ("w.safetensors", TWICE, "'ip1'"),
        ("w.h5", NET.replace('name: "ip2"', ""), "named ''"),
        ("w.h5", NET.replace("ip2", "/ip2"), "'/ip2'"),
        ("w.h5", NET.replace("ip2", "ip2/"), "'ip2/'"),
        ("w.h5", NET.replace("ip2", "a//b"), "'a//b'"),
        ("w.h5", NET.replace("ip2", "ip1/0"), "'ip1/0'"),
        ("w.h5", NET + 'layer { name: "ip1/1/r" type: "ReLU" bottom: "y" top: "y" }', "'ip1/1/r'"),
    ],
)
def test_layers_that_a_format_cannot_keep_apart_are_refused(name, text, shown, tmp_path):
    if name.endswith("h5"):
        pytest.importorskip("h5py")

    with expect_error(WeightsError, "invalid", mentions=shown):
        net_of(text).save(tmp_path / name)

    assert not list(tmp_path.iterdir())


def test_an_export_to_hdf5_refuses_a_layer_without_a_name(tmp_path):
    pytest.importorskip("h5py")

    with expect_error(WeightsError, "invalid", mentions="''"):
        write_weights(tmp_path / "w.h5", "h5", {"": {0: np.zeros(3)}})


def test_layers_without_a_name_and_without_parameters_are_no_obstacle(tmp_path):
    pytest.importorskip("h5py")
    net = net_of(NET + 'layer { type: "ReLU" bottom: "y" top: "y" }')

    net.save(tmp_path / "w.h5")

    assert net.load(tmp_path / "w.h5").loaded == ["ip1", "ip2"]


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_gradients_are_not_left_out_without_a_word(name, tmp_path):
    (tmp_path / name).write_bytes(b"older")

    with expect_error(WeightsError, mentions=[".caffemodel", ".h5"]):
        net_of().save(tmp_path / name, write_diff=True)

    assert (tmp_path / name).read_bytes() == b"older"


def test_weights_are_read_without_a_net(saved):
    source = net_of()
    file = saved(source)
    if isinstance(file, NetParameter):
        pytest.skip("a message is not a file")

    weights = demitasse.load_weights(file)

    assert {name: [a.shape for a in arrays] for name, arrays in weights.items()} == {
        "ip1": [(5, 6), (5,)],
        "ip2": [(3, 5), (3,)],
    }
    np.testing.assert_array_equal(weights["ip2"][0], values(source)["ip2"][0])


def test_a_net_leaves_out_fields_that_are_not_known_when_asked(tmp_path, caplog):
    text = (
        'layer { name: "x" type: "DummyData" top: "x" colour: 3 '
        "dummy_data_param { shape { dim: 1 } } }"
    )
    file = tmp_path / "net.prototxt"
    file.write_text(text)

    with expect_error(PrototxtError, mentions="colour"):
        Net(file, "TEST")
    net = Net(file, "TEST", ignore_unknown_fields=True)

    assert net.blob_names == ["x"]
    assert "colour" in caplog.text
