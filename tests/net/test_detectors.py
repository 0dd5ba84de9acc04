"""Detectors train: a single-shot one, and one with regions."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from demitasse.examples.data import scenes
from demitasse.io.data import write_annotations
from demitasse.io.proto import NetParameter, SolverParameter, parse_text, read_solver_params
from demitasse.training import Solver

SSD = Path(__file__).resolve().parents[2] / "examples" / "ssd"


@pytest.fixture
def folder(tmp_path):
    """The example with few images."""
    for file in SSD.glob("*.prototxt"):
        shutil.copy(file, tmp_path)
    for part, count in (("train", 32), ("test", 20)):
        drawn = scenes(count, 64, seed=count)
        records = (
            (one.image, [(kind, *(edge / 64 for edge in box)) for kind, *box in one.boxes])
            for one in drawn
        )
        write_annotations(tmp_path / f"{part}_lmdb", records)
    return tmp_path


def losses(solver, count):
    found = []
    for _ in range(count):
        solver.step(1)
        found.append(float(solver.net.blobs["loss"].data))
    return np.array(found)


def test_the_loss_of_a_single_shot_detector_falls(folder):
    param = read_solver_params(folder / "solver.prototxt")
    param.test_initialization = False
    param.test_iter[:] = [1]
    solver = Solver(param, device="cpu", base_dir=folder)

    found = losses(solver, 16)

    assert found[-4:].mean() < 0.7 * found[:4].mean()
    assert 0 <= solver.test(0)["detection_eval"] <= 1


def test_a_single_shot_detector_goes_on_exactly_where_it_stopped(folder):
    param = read_solver_params(folder / "solver.prototxt")
    param.snapshot_prefix = str(folder / "half")
    straight = Solver(param, device="numpy", base_dir=folder)
    straight.step(2)
    _, state = straight.snapshot()
    expected = losses(straight, 2)

    resumed = Solver(param, device="numpy", base_dir=folder)
    resumed.restore(state)

    np.testing.assert_array_equal(losses(resumed, 2), expected)


def python(name, layer, bottoms, tops):
    ends = [f'bottom: "{blob}"' for blob in bottoms] + [f'top: "{blob}"' for blob in tops]
    return (
        f'layer {{ name: "{name}" type: "Python" {" ".join(ends)} '
        f'python_param {{ module: "detector_layers" layer: "{layer}" }} }}\n'
    )


def conv(name, bottom, count, kernel=3, stride=1):
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: {count} kernel_size: {kernel} pad: {kernel // 2} "
        f'stride: {stride} weight_filler {{ type: "msra" }} }} }}\n'
    )


def relu(name):
    return f'layer {{ name: "{name}_relu" type: "ReLU" bottom: "{name}" top: "{name}" }}\n'


def dense(name, bottom, count):
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" '
        f'inner_product_param {{ num_output: {count} weight_filler {{ type: "xavier" }} }} }}\n'
    )


def reshape(name, bottom, *dims):
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return (
        f'layer {{ name: "{name}" type: "Reshape" bottom: "{bottom}" top: "{name}" '
        f"reshape_param {{ shape {{ {shape} }} }} }}\n"
    )


RCNN = (
    python("input", "Images", (), ("data", "im_info", "gt_boxes"))
    + conv("conv1", "data", 8, stride=2)
    + relu("conv1")
    + conv("conv2", "conv1", 16, stride=2)
    + relu("conv2")
    + conv("rpn", "conv2", 16)
    + relu("rpn")
    + conv("rpn_score", "rpn", 4, kernel=1)
    + conv("rpn_box", "rpn", 8, kernel=1)
    + reshape("rpn_rows", "rpn_score", 0, 2, -1, 0)
    + python(
        "rpn_targets",
        "AnchorTargets",
        ("rpn_score", "gt_boxes"),
        ("rpn_labels", "rpn_boxes", "rpn_inside", "rpn_outside"),
    )
    + """
layer { name: "rpn_loss" type: "SoftmaxWithLoss" bottom: "rpn_rows" bottom: "rpn_labels"
  top: "rpn_loss" propagate_down: true propagate_down: false loss_param { ignore_label: -1 } }
layer { name: "rpn_box_loss" type: "SmoothL1Loss" bottom: "rpn_box" bottom: "rpn_boxes"
  bottom: "rpn_inside" bottom: "rpn_outside" top: "rpn_box_loss"
  smooth_l1_loss_param { sigma: 3 } }
layer { name: "rpn_prob" type: "Softmax" bottom: "rpn_rows" top: "rpn_prob" }
"""
    + reshape("rpn_prob_map", "rpn_prob", 0, 4, -1, 0)
    + """
layer { name: "proposal" type: "Proposal" bottom: "rpn_prob_map" bottom: "rpn_box"
  bottom: "im_info" top: "proposals"
  proposal_param { feat_stride: 4 base_size: 4 ratio: 1 scale: 3 scale: 5 min_size: 4
    pre_nms_topn: 50 post_nms_topn: 8 } }
"""
    + python(
        "targets",
        "RegionTargets",
        ("proposals", "gt_boxes"),
        ("rois", "labels", "boxes", "inside", "outside"),
    )
    + """
layer { name: "pool" type: "ROIPooling" bottom: "conv2" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.25 } }
"""
    + dense("fc", "pool", 32)
    + relu("fc")
    + dense("score", "fc", 3)
    + dense("box", "fc", 12)
    + """
layer { name: "class_loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "labels"
  top: "class_loss" propagate_down: true propagate_down: false }
layer { name: "box_loss" type: "SmoothL1Loss" bottom: "box" bottom: "boxes" bottom: "inside"
  bottom: "outside" top: "box_loss" }
"""
)


def test_a_detector_with_regions_trains_end_to_end(tmp_path):
    param = parse_text(
        'base_lr: 0.02 lr_policy: "fixed" momentum: 0.9 random_seed: 2 max_iter: 60',
        SolverParameter,
    )
    param.net_param.CopyFrom(parse_text(RCNN, NetParameter))
    param.snapshot_prefix = str(tmp_path / "rcnn")
    names = ("rpn_loss", "rpn_box_loss", "class_loss", "box_loss")
    solver = Solver(param, device="numpy")

    found = []
    for _ in range(60):
        solver.step(1)
        found.append([float(solver.net.blobs[name].data) for name in names])

    total = np.sum(found, axis=1)
    assert total[-15:].mean() < 0.6 * total[:15].mean()
    assert np.abs(solver.net.params["conv1"][0].diff).max() > 0
    weights, _ = solver.snapshot()
    assert weights.exists()
