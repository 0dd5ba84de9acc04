"""The files that scripts find in the working directory; what they set does not outlive a test."""

import pytest

from demitasse import settings
from demitasse.compat.pycaffe import common, solver
from demitasse.core.device import set_device
from demitasse.core.log import stop_logging

NET = """
name: "classifier"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } }
        include { phase: TRAIN } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "extra" type: "TanH" bottom: "ip" top: "extra" include { stage: "extra" } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
        include { phase: TRAIN } }
"""

SOLVER = """
net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" max_iter: 4
snapshot_prefix: "out" random_seed: 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with ``net.prototxt`` and ``solver.prototxt``."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def on_backend(backend):
    """Nets are made on each device in turn."""
    set_device(backend)
    return backend


@pytest.fixture(autouse=True)
def _modes_end_with_the_test(monkeypatch):
    monkeypatch.setattr(common, "_started_log", [])
    monkeypatch.setattr(common, "_phase", [])
    monkeypatch.setattr(common, "_gpu", {"id": 0})
    monkeypatch.setattr(solver, "_solvers", {"count": 1, "rank": 0})
    yield
    set_device(None)
    settings.set("seed", None)
    stop_logging()
