"""A resumed run reads the records, and cuts and mirrors them, as if it had never stopped."""

import numpy as np
import pytest

from demitasse import Solver
from demitasse.io.data.databases.writing import write_database
from demitasse.io.proto import SolverState, read_binary, write_binary

NET = """
name: "images"
layer { name: "data" type: "Data" top: "x" top: "y"
  data_param { source: "SOURCE" backend: LMDB batch_size: 4 }
  transform_param { crop_size: 5 mirror: true scale: 0.01 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""


@pytest.fixture
def make(fields, tmp_path):
    """Make solvers of a net that reads 11 images: no whole number of batches."""
    rng = np.random.default_rng(0)
    images = [(rng.integers(0, 256, (2, 8, 8), np.uint8), i % 3) for i in range(11)]
    write_database(tmp_path / "db", images)
    made = []

    def solver(text="", **options):
        net = NET.replace("SOURCE", (tmp_path / "db").as_posix())
        made.append(Solver(fields(text, net=net, drop="random_seed"), **options))
        return made[-1]

    yield solver
    for one in made:
        one.close()


def weights(solver):
    return [blob.cpu_data().copy() for blob in solver.net.learnable_params]


@pytest.mark.parametrize("text", ["", "test_iter: 2 test_interval: 2"], ids=["train", "test"])
def test_data_resume_exactly(make, tmp_path, text, backend):
    whole, second = make(text, device=backend), make(text, device=backend)
    whole.step(3)
    _, state = whole.snapshot(tmp_path / "s")
    whole.step(4)

    second.restore(state)
    second.step(4)

    for ours, theirs in zip(weights(second), weights(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [net.layers[0].state() for net in (second.net, *second.test_nets)] == [
        net.layers[0].state() for net in (whole.net, *whole.test_nets)
    ]


def test_a_position_is_what_was_used_not_what_was_read_ahead(make, tmp_path):
    solver = make()
    solver.step(3)

    _, file = solver.snapshot(tmp_path / "s")

    [layer] = read_binary(file, SolverState).resume.net[0].layer
    assert (layer.layer, layer.counter[0].value) == ("data", 12)


def test_caffes_states_start_at_the_first_record(make, tmp_path):
    solver = make()
    solver.step(3)
    _, file = solver.snapshot(tmp_path / "s")
    state = read_binary(file, SolverState)
    state.ClearField("resume")
    write_binary(file, state)

    solver.restore(file)
    solver.step(1)

    assert solver.net.layers[0].state() == {"position": 4}
