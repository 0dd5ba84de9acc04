"""What forward passes leave for later ones, brought back for whoever takes passes back."""

import numpy as np
import pytest
from cuda_host import cuda_at

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

AVERAGES = """
layer { name: "data" type: "DummyData" top: "data" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 5 dim: 5 } data_filler { type: "gaussian" } } }
layer { name: "norm" type: "BatchNorm" bottom: "data" top: "norm" }
layer { name: "ip" type: "InnerProduct" bottom: "norm" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
"""
SEQUENCES = """
layer { name: "data" type: "DummyData" top: "data" top: "cont" dummy_data_param {
  shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "lstm" type: "LSTM" bottom: "data" bottom: "cont" top: "h"
  recurrent_param { num_output: 5 weight_filler { type: "xavier" } } }
"""
GIVEN = """
layer { name: "data" type: "Input" top: "data" top: "cont"
  input_param { shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } } }
layer { name: "lstm" type: "LSTM" bottom: "data" bottom: "cont" top: "h"
  recurrent_param { num_output: 5 weight_filler { type: "xavier" } } }
"""


def made(text, device):
    return Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=2)


def averages(net):
    return [blob.cpu_data().copy() for blob in net.params["norm"]]


@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("place", ["numpy", "host", "cuda:0"])
def test_averages_are_those_of_then(place, before, after):
    net = made(AVERAGES, place if place == "numpy" else cuda_at(place))
    for _ in range(before):
        net.forward()
    wanted = averages(net)

    take_back = net.savepoint()
    for _ in range(after):
        net.forward()
    changed = averages(net)
    take_back()

    assert after == 0 or any((a != b).any() for a, b in zip(changed, wanted, strict=True))
    for a, b in zip(averages(net), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_several_may_go_back_to_different_passes(backend):
    net = made(AVERAGES, backend)
    net.forward()
    first, to_first = averages(net), net.savepoint()
    net.forward()
    second, to_second = averages(net), net.savepoint()
    net.forward()

    to_second()
    there = averages(net)
    to_first()

    for got, wanted in ((there, second), (averages(net), first)):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_is_written_before_the_first_pass_counts(backend):
    net = made(AVERAGES, backend)

    take_back = net.savepoint()
    for blob in net.params["norm"]:
        blob.mutable_cpu_data()[...] = 2
    net.forward()
    take_back()

    assert all((array == 2).all() for array in averages(net))


def test_states_that_there_were_none_of_begin_with_nothing(backend):
    net = made(SEQUENCES, backend)

    take_back = net.savepoint()
    net.forward()
    first = net.blobs["h"].cpu_data().copy()
    net.forward()
    take_back()
    net.forward()

    np.testing.assert_array_equal(net.blobs["h"].cpu_data(), first)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_a_replayed_pass_begins_with_the_states_that_were_restored(backend, phase):
    with Net(parse_text(GIVEN, NetParameter), phase, device=backend, keep_blobs="outputs") as net:
        values = np.random.default_rng(4).standard_normal((3, 2, 4))
        results = []
        for _ in range(6):
            take_back = net.savepoint()
            results.append(net.predict({"data": values, "cont": np.ones((3, 2))})["h"])
            take_back()

    for one in results[1:]:
        np.testing.assert_array_equal(one, results[0])


def test_nothing_is_kept_for_nobody(backend, monkeypatch):
    net = made(AVERAGES, backend)
    net.forward()
    made_copies = []
    monkeypatch.setattr("demitasse.net.rollback.BlobCopies.make", made_copies.append)

    net.savepoint()
    with net.device.backend.enter():
        net.execution.passes.forward(0, 2)

    assert not made_copies
