"""What lint finds in solvers."""

import numpy as np
import pytest

from demitasse.io.data.databases.writing import write_database
from demitasse.lint import lint

NET = """
layer { name: "data" type: "Data" top: "x" top: "y"
  data_param { source: "db" backend: LMDB batch_size: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""
SOLVER = """net: "net.prototxt"
base_lr: 0.1
lr_policy: "fixed"
max_iter: 100
"""


@pytest.fixture
def found(tmp_path):
    """Write a solver beside its net, and lint it."""
    write_database(tmp_path / "db", [(np.zeros((1, 4, 4), np.uint8), i) for i in range(3)])
    (tmp_path / "net.prototxt").write_text(NET)

    def run(text):
        (tmp_path / "solver.prototxt").write_text(text)
        return lint(tmp_path / "solver.prototxt")

    return run


def the(findings, code):
    [one] = [finding for finding in findings if finding.code == code]
    return one


def test_a_sound_solver_gives_nothing(found):
    assert found(SOLVER + "test_iter: 2 test_interval: 10 snapshot: 50") == []


@pytest.mark.parametrize("weights", ["none.caffemodel", "net.prototxt, none.caffemodel"])
def test_missing_weights_are_an_error(found, tmp_path, weights):
    one = the(found(f'{SOLVER}\nweights: "{weights}"'), "missing-file")

    assert one.severity == "error"
    assert one.where == f"{tmp_path / 'solver.prototxt'}:6"


@pytest.mark.parametrize(
    ("text", "severity", "code", "line", "says"),
    [
        (SOLVER.replace('"fixed"', '"poly"').replace("max_iter: 100", ""),
         "error", "poly-max-iter", 3, "max_iter"),
        (SOLVER.replace('"fixed"', '"stpe"'), "error", "solver-field", 3, "lr_policy"),
        (SOLVER + 'type: "Adma"', "error", "solver-field", 5, "'Adma'"),
        (SOLVER + "iter_size: 0", "error", "solver-field", 5, "iter_size"),
        (SOLVER + "test_iter: 1", "error", "solver-field", None, "test_interval"),
        (SOLVER + "test_interval: 5", "warning", "no-test", 5, "test_iter"),
        (SOLVER + "test_iter: 1 test_interval: 500", "note", "no-test", 5, "test_interval 500"),
        (SOLVER + "gamma: 0.1", "note", "unused-field", 5, "gamma"),
        (SOLVER.replace('"fixed"', '"exp"') + "gamma: 1.5",
         "warning", "growing-rate", 5, "gamma 1.5"),
        (SOLVER.replace('"fixed"', '"step"') + "stepsize: 10",
         "warning", "solver-field", 3, "gamma"),
        (SOLVER.replace('"fixed"', '"poly"'), "warning", "solver-field", 3, "power"),
        (SOLVER.replace('"fixed"', '"multistep"') + "gamma: 0.1 stepvalue: [20, 10]",
         "warning", "stepvalue", 5, "20"),
        (SOLVER.replace('"fixed"', '"multistep"') + "gamma: 0.1 stepvalue: 200",
         "note", "stepvalue", 5, "max_iter 100"),
        (SOLVER.replace('"fixed"', '"step"') + "gamma: 0.1 stepsize: 200",
         "note", "stepvalue", 5, "max_iter 100"),
        (SOLVER + "momentum: 1.0", "warning", "momentum", 5, "momentum 1"),
        (SOLVER + "clip_gradients: 5 iter_size: 2",
         "note", "clip-before-iter-size", 5, "iter_size"),
        (SOLVER + 'snapshot_prefix: "none/s"', "error", "snapshot-folder", 5, "'none'"),
        (SOLVER + "snapshot_after_train: false", "warning", "no-snapshot", 5, "snapshot"),
        (SOLVER.replace("max_iter: 100", ""),
         "warning", "solver-field", None, "max_iter"),
        (SOLVER + "solver_type: ADAM momentum: 0.9", "note", "old-field", 5, "solver_type: ADAM"),
        (SOLVER + 'train_net: "net.prototxt"', "error", "solver-net", None, "train_net"),
        (SOLVER.replace("net.prototxt", "no.prototxt"), "error", "missing-file", 1, "no.prototxt"),
        (SOLVER + "momentun: 0.9", "error", "unknown-field", None, "'momentum'"),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value and len(value) < 22 else "",
)  # fmt: skip
def test_solvers_that_are_not_as_meant(found, tmp_path, text, severity, code, line, says):
    one = the(found(text), code)

    assert one.severity == severity
    assert says in one.message
    if line is not None:
        assert one.where.startswith(f"{tmp_path / 'solver.prototxt'}:{line}")


def test_its_nets_are_looked_at(found, tmp_path):
    (tmp_path / "net.prototxt").write_text(NET.replace("num_output: 3", "num_output: 2"))

    one = the(found(SOLVER), "label-range")

    assert one.where == f"{tmp_path / 'net.prototxt'}:6: layer 'loss' (SoftmaxWithLoss)"


def test_its_states_choose_the_layers(found, tmp_path):
    stage = 'include { stage: "a" }'
    (tmp_path / "net.prototxt").write_text(NET.replace("data_param", f"{stage} data_param"))

    without = found(SOLVER)
    with_it = found(SOLVER + 'train_state { stage: "a" }')

    assert ("error", "unknown-blob") in {(f.severity, f.code) for f in without}
    assert with_it == []


def test_the_states_of_the_net_and_of_the_solver_are_merged(found, tmp_path):
    stages = 'include { stage: "a" stage: "b" }'
    net = NET.replace("data_param", f"{stages} data_param") + 'state { stage: "a" }'
    (tmp_path / "net.prototxt").write_text(net)

    assert found(SOLVER + 'train_state { stage: "b" }') == []


def test_nets_inside_a_solver_are_looked_at(found, tmp_path):
    inner = f"net_param {{ {NET} }}"

    assert found(SOLVER.replace('net: "net.prototxt"', inner)) == []
    one = the(found(SOLVER.replace('net: "net.prototxt"', inner.replace("3", "2"))), "label-range")
    assert (
        one.where == f"{tmp_path / 'solver.prototxt'}:1: net_param: layer 'loss' (SoftmaxWithLoss)"
    )


def test_dropped_parts_of_a_net_inside_a_solver_are_reported(found, tmp_path):
    inner = f'net_param {{ input: "unused" {NET} }}'

    one = the(found(SOLVER.replace('net: "net.prototxt"', inner)), "left-out")

    assert one.severity == "warning"
    assert one.where == f"{tmp_path / 'solver.prototxt'}:1: net_param"


def test_test_nets_are_looked_at_in_their_own_states(found, tmp_path):
    (tmp_path / "test.prototxt").write_text(NET.replace('top: "y"', 'top: "z"'))
    tests = 'test_net: "test.prototxt" test_iter: 1 test_interval: 1'

    one = the(found(SOLVER.replace("net:", "train_net:") + tests), "unknown-blob")

    assert "'y'" in one.message
    assert "TEST" in one.message
