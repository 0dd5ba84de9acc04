"""A small solver for every test: random data, dropout, two trained layers, an accuracy to test."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from demitasse.io.proto import SolverParameter, parse_text

NET = """
name: "small"
layer { name: "data" type: "DummyData" top: "x" top: "y"
  dummy_data_param {
    shape { dim: 4 dim: 6 } shape { dim: 4 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "ip1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "y" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "y" top: "accuracy"
  include { phase: TEST } }
"""

SOLVER = """
base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01
max_iter: 8 random_seed: 7 snapshot_after_train: false
"""


@pytest.fixture
def fields() -> Callable[..., SolverParameter]:
    """Make the fields of a solver of the small net; ``text`` and keywords change them."""

    def make(text: str = "", *, net: str = NET, drop: str = "", **values: Any) -> SolverParameter:
        param = parse_text(SOLVER, SolverParameter)
        if net:
            param.MergeFrom(parse_text(f"net_param {{ {net} }}", SolverParameter))
        for name in drop.split():
            param.ClearField(name)
        param.MergeFrom(parse_text(text, SolverParameter))
        for name, value in values.items():
            setattr(param, name, value)
        return param

    return make


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return what has been logged so far."""
    caplog.set_level(logging.INFO, "demitasse")
    return lambda: [record.getMessage() for record in caplog.records]
