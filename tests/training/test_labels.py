"""Training with labels that are no classes."""

import logging

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Solver
from demitasse.errors import DataError

NET = """
layer {{ name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {{
  shape {{ dim: 4 dim: 5 }} shape {{ dim: 4 }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{
  num_output: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
layer {{ name: "loss" type: "{loss}" bottom: "{scores}" bottom: "label" top: "loss" {fields} }}
"""

SCORES = {"MultinomialLogisticLoss": "prob", "InfogainLoss": "ip"}


@pytest.fixture
def trained(tmp_path, backend):
    """Makes one iteration with these labels."""

    def train(labels, loss="SoftmaxWithLoss", fields="", **options):
        scores = SCORES.get(loss, "ip")
        (tmp_path / "net.prototxt").write_text(NET.format(loss=loss, scores=scores, fields=fields))
        solver = tmp_path / "solver.prototxt"
        solver.write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
        with Solver(solver, device=backend, seed=1, **options) as solver:
            solver.net.layers[0].forward = lambda bottom, top: top[1].write(
                solver.net.device.backend.xp.asarray(
                    np.array(labels, np.float32), device=solver.net.device.backend.array_device
                )
            )
            solver.step(1)
            return solver.smoothed_loss

    return train


@pytest.mark.parametrize("loss", ["SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss"])
@pytest.mark.parametrize(("label", "shown"), [(3, "3"), (-1, "-1"), (float("nan"), "nan")])
def test_a_label_that_is_no_class_is_named(trained, loss, label, shown):
    names = [f"label {shown}", "image 2", "'label'", "0 to 2"]
    with expect_error(DataError, mentions=names, place=f"layer 'loss' ({loss})"):
        trained([0, 1, label, 2], loss)


def test_ignored_labels_are_not_at_fault(trained):
    fields = "loss_param { ignore_label: 255 }"

    assert np.isfinite(trained([0, 255, 1, 2], fields=fields))
    with expect_error(DataError, mentions=["254", "image 3"]):
        trained([0, 255, 1, 254], fields=fields)


def test_another_loss_that_is_nan_is_warned_of_as_before(trained, caplog):
    with caplog.at_level(logging.WARNING):
        trained([0, 1, 2, 0], fields="loss_weight: 3.4e38")

    assert "inf at iteration 0" in caplog.text
