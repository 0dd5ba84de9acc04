"""Weights from files: what fits, what does not, and what becomes of the rest."""

import numpy as np
import pytest

import demitasse
from demitasse import Net, Solver
from demitasse.errors import ConfigError, ShapeError, WeightsError
from demitasse.proto import NetParameter, SolverParameter, parse_text

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


@pytest.fixture(params=["message", "caffemodel", "HDF5"])
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
        return tmp_path / "w.caffemodel"

    return save


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OTHER, "cannot copy parameter 0 of layer 'ip2': the source has 4 5"),
        (FEWER, "layer 'ip2' has 2 parameters, the source has 1"),
    ],
)
def test_what_does_not_fit_can_be_left_out(saved, text, reason, backend):
    net, source = net_of(device=backend), net_of(text, seed=2, device=backend)
    before = values(net)

    report = net.load(saved(source), on_mismatch="skip")

    assert (report.loaded, report.missing, report.ignored) == (["ip1"], ["ip2"], [])
    assert list(report.mismatched) == ["ip2"]
    assert report.mismatched["ip2"].startswith(reason)
    after = values(net)
    for name, wanted in (("ip1", values(source)["ip1"]), ("ip2", before["ip2"])):
        for mine, theirs in zip(after[name], wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("text", "error"), [(OTHER, ShapeError), (FEWER, WeightsError)])
def test_without_leave_it_is_refused_and_nothing_changes(saved, text, error):
    net = net_of()
    before = values(net)

    with pytest.raises(error, match="or leave it out with on_mismatch='skip'"):
        net.load(saved(net_of(text, seed=2)))

    for name, wanted in before.items():
        for mine, theirs in zip(values(net)[name], wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_wrong_word_is_refused():
    with pytest.raises(ConfigError, match="must be 'error' or 'skip', not 'ignore'"):
        net_of().load(net_of().to_proto(), on_mismatch="ignore")


def test_axes_of_one_are_pointed_at():
    source = net_of().to_proto()
    source.layer[2].blobs[1].shape.dim[:] = [1, 1, 3]

    with pytest.raises(ShapeError, match=r"1 1 3.*only axes of 1 differ"):
        net_of().load(source)


def test_gradients_are_checked_before_anything_changes():
    net = net_of()
    source = net_of(seed=2).to_proto(write_diff=True)
    source.layer[2].blobs[1].diff.append(1.0)
    before = values(net)

    with pytest.raises(WeightsError, match="has 4 gradients for its shape 3"):
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

    with pytest.raises(WeightsError, match="parameter 1 of layer 'ip2' holds"):
        net_of(seed=4).load(tmp_path / "w.h5")

    np.testing.assert_array_equal(values(net)["ip1"][0], before["ip1"][0])


def test_weights_of_a_solver_may_leave_out_layers(tmp_path, caplog):
    net_of(OTHER, seed=2).save(tmp_path / "w.caffemodel")
    text = f'base_lr: 1 lr_policy: "fixed" weights: "{tmp_path}/w.caffemodel" net_param {{ {NET} }}'
    param = parse_text(text, SolverParameter)

    with pytest.raises(ShapeError, match="on_mismatch='skip'"):
        Solver(param, device="numpy")
    solver = Solver(param, device="numpy", on_mismatch="skip")

    wanted = values(net_of(OTHER, seed=2))["ip1"][0]
    np.testing.assert_array_equal(solver.net.params["ip1"][0].cpu_data(), wanted)
    assert "Left out: cannot copy parameter 0 of layer 'ip2'" in caplog.text


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
