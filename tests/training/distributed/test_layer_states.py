"""State of layers of every shard is in the snapshots of a run of several processes."""

import numpy as np
import pytest

from demitasse.training import read_state

NET = """
layer { name: "rows" type: "HDF5Data" top: "rows" top: "cont"
  hdf5_data_param { source: "list.txt" batch_size: 3 } }
layer { name: "own" type: "Python" top: "own"
  python_param { module: "shard_counts" layer: "Counts" } }
layer { name: "lstm" type: "LSTM" bottom: "rows" bottom: "cont" top: "lstm"
  recurrent_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "both" type: "Concat" bottom: "lstm" bottom: "own" top: "both"
  concat_param { axis: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "both" top: "ip"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss"
  reduction_param { operation: SUMSQ coeff: 0.01 } loss_weight: 1 }
"""

COUNTS = """
import caffe


class Counts(caffe.Layer):
    def setup(self, bottom, top):
        self.sum = self.rank

    def reshape(self, bottom, top):
        top[0].reshape(3, 2, 1)

    def forward(self, bottom, top):
        self.sum = self.sum * 1.5 + 0.25
        top[0].data[...] = self.sum % 1

    def backward(self, top, propagate_down, bottom):
        pass

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]
"""

SOLVER = """
net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" random_seed: 3 max_iter: 6
snapshot: 3
"""


@pytest.fixture
def place(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng, place = np.random.default_rng(0), tmp_path / "place"
    place.mkdir()
    with h5py.File(place / "rows.h5", "w") as file:
        file["rows"], file["cont"] = rng.random((70, 2, 5)), np.ones((70, 2))
    (place / "list.txt").write_text(str(place / "rows.h5"))
    (place / "net.prototxt").write_text(NET)
    (place / "shard_counts.py").write_text(COUNTS)
    (place / "solver.prototxt").write_text(SOLVER)
    return place


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 2), (2, 4)])
def test_hidden_states_of_all_shards_resume_exactly(train, place, tmp_path, before, after):
    options = {"num_shards": 4, "place": place, "device": "cpu"}
    [(_, expected)], _ = train(1, **options)
    results, errors = train(before, lambda solver: solver.step(3), **options)
    assert errors == [None] * before

    def resume(solver):
        solver.restore(tmp_path / "run_iter_3.solverstate", exact=True)
        solver.step(3)

    results, errors = train(after, resume, **options)

    assert errors == [None] * after
    assert {weights for _, weights in results} == {expected}


def test_the_last_snapshot_has_the_states_of_all_shards(train, place, tmp_path):
    options = {"num_shards": 2, "place": place, "device": "numpy"}

    def solve(solver):
        solver.param.max_iter = 4
        solver.solve()

    _, errors = train(2, solve, **options)

    assert errors == [None, None]
    parts = {p.net: p for p in read_state(tmp_path / "run_iter_4.solverstate").resume.net}
    assert {layer.layer for layer in parts["train shard 1"].layer} == {"lstm", "own"}


def test_a_snapshot_of_one_process_alone_lacks_other_shards(train, place, tmp_path, caplog):
    options = {"num_shards": 2, "place": place, "device": "numpy"}

    def write(solver):
        solver.step(2)
        if solver.net.layers[0].context.rank == 0:
            solver.snapshot()

    _, errors = train(2, write, **options)
    assert errors == [None, None]

    def resume(solver):
        solver.restore(tmp_path / "run_iter_2.solverstate", exact=True)

    _, errors = train(2, resume, **options)

    assert [error.details["differences"] for error in errors] == [["own", "lstm"]] * 2
