"""Mean average precision, as SSD's solver computes it."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.training import Solver
from demitasse.training.evaluation import average_precision

SCORES = np.array([0.9, 0.8, 0.7, 0.6])
RIGHT = np.array([True, False, True, False])
# precisions 1, 1/2, 2/3, 1/2 at recalls 1/4, 1/4, 1/2, 1/2


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("Integral", 1 / 4 + 2 / 3 / 4),
        # the best precision from the recall before, on: 1 up to 1/4, then 2/3
        ("MaxIntegral", 1 / 4 + 2 / 3 / 4),
        # 1 at recalls 0, 0.1 and 0.2; 2/3 at 0.3, 0.4 and 0.5
        ("11point", (3 + 3 * 2 / 3) / 11),
    ],
)
def test_average_precisions(version, expected):
    assert average_precision(SCORES, RIGHT, 4, version) == pytest.approx(expected)


@pytest.mark.parametrize("version", ["Integral", "MaxIntegral", "11point"])
def test_all_right_is_1_and_nothing_found_is_0(version):
    assert average_precision(SCORES, np.ones(4, bool), 4, version) == pytest.approx(1)
    assert average_precision(SCORES[:0], RIGHT[:0], 4, version) == 0
    assert average_precision(SCORES, RIGHT, 0, version) == 0


def test_detections_are_sorted_by_their_scores():
    order = [2, 0, 3, 1]

    assert average_precision(SCORES[order], RIGHT[order], 4) == average_precision(SCORES, RIGHT, 4)


NET = """
layer { name: "found" type: "DummyData" top: "found" include { phase: TEST }
  dummy_data_param { shape { dim: 1 dim: 1 dim: 1 dim: 7 }
    data_filler { type: "constant" value: 1 } } }
layer { name: "truth" type: "DummyData" top: "truth" include { phase: TEST }
  dummy_data_param { shape { dim: 1 dim: 1 dim: 1 dim: 8 }
    data_filler { type: "constant" value: 1 } } }
layer { name: "x" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "y" top: "loss" }
layer { name: "eval" type: "DetectionEvaluate" bottom: "found" bottom: "truth" top: "map"
  detection_evaluate_param { num_classes: 2 } include { phase: TEST } }
"""
SOLVER = 'base_lr: 0.1 lr_policy: "fixed" test_iter: 3 test_interval: 9 eval_type: "detection" '


def solver(net=NET, fields="", **options):
    param = parse_text(SOLVER + fields, SolverParameter)
    param.net_param.CopyFrom(parse_text(net, type(param.net_param)))
    return Solver(param, device="numpy", **options)


SILENT = NET + 'layer { name: "quiet" type: "Silence" bottom: "loss" include { phase: TEST } }'


def test_a_test_gives_the_mean_average_precision(caplog):
    caplog.set_level("INFO")
    made = solver(SILENT, "show_per_class_result: true")

    # boxes of no size overlap nothing, so what was detected is wrong
    assert made.test(0) == {"map": 0}
    assert "Test net output #0: map = 0" in caplog.text
    assert "class1: 0" in caplog.text


def test_what_is_not_judged_is_refused():
    with expect_error(ConfigError, ErrorCode.INVALID, field="eval_type", outputs=["loss"]):
        solver().test(0)


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ('ap_version: "integral"', "11point, MaxIntegral, Integral"),
        ('eval_type: "boxes"', "classification, detection"),
    ],
)
def test_other_ways_to_test_are_refused(fields, known):
    text = SOLVER.replace('eval_type: "detection" ', "") + fields
    param = parse_text(text, SolverParameter)
    param.net_param.CopyFrom(parse_text(SILENT, type(param.net_param)))

    field = fields.partition(":")[0]
    with expect_error(ConfigError, ErrorCode.UNKNOWN, mentions=known, field=field):
        Solver(param, device="numpy")
