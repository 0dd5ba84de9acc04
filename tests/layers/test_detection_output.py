"""DetectionOutput; what it computes is tested with ``demitasse.layers.detection.boxes``."""

import logging

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.layers.detection.detection_output import Detector
from demitasse.net import Net
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
N, PRIORS, CLASSES = 2, 12, 3
CORNER = RNG.uniform(0, 0.6, (PRIORS, 2))
PRIOR = np.stack(
    [np.concatenate([CORNER, CORNER + 0.3], axis=1), np.full((PRIORS, 4), 0.1)]
).reshape(1, 2, -1)
LOCATION = RNG.normal(0, 1, (N, PRIORS * 4))
SCORE = RNG.dirichlet(np.ones(CLASSES), (N, PRIORS))


def text(fields=""):
    return f'type: "DetectionOutput" detection_output_param {{ num_classes: {CLASSES} {fields} }}'


def detect(location=LOCATION, boxes=1, **changes):
    fields = {
        "classes": CLASSES,
        "background": 0,
        "code": "CORNER",
        "variance_in_target": False,
        "confidence": -1.0,
        "overlap": np.float32(0.3),
        "eta": 1.0,
        "top_k": -1,
        "keep": -1,
    }
    location = location.reshape(N, PRIORS, boxes, 4)
    return Detector(**(fields | changes))(location, SCORE, PRIOR.reshape(2, PRIORS, 4))


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ("", {}),
        ("code_type: CENTER_SIZE", {"code": "CENTER_SIZE"}),
        (
            "code_type: CORNER_SIZE variance_encoded_in_target: true",
            {"code": "CORNER_SIZE", "variance_in_target": True},
        ),
        ("background_label_id: 2", {"background": 2}),
        ("background_label_id: -1", {"background": -1}),
        ("confidence_threshold: 0.5", {"confidence": 0.5}),
        ("keep_top_k: 5", {"keep": 5}),
        ("nms_param { nms_threshold: 0.75 eta: 0.5 }", {"overlap": 0.75, "eta": 0.5}),
        ("nms_param { top_k: 4 }", {"top_k": 4}),
    ],
)
def test_every_field_counts(fields, changes, backend):
    one = make_layer(text(fields), [LOCATION, SCORE.reshape(N, -1), PRIOR], device=backend)

    [rows] = one.forward()

    np.testing.assert_allclose(rows[0, 0], detect(**changes), rtol=1e-6)


def test_one_box_for_each_class(backend):
    location = RNG.normal(0, 1, (N, PRIORS * CLASSES * 4))
    bottoms = [location, SCORE.reshape(N, -1), PRIOR]
    one = make_layer(text("share_location: false"), bottoms, device=backend)

    [rows] = one.forward()

    np.testing.assert_allclose(rows[0, 0], detect(location, CLASSES), rtol=1e-6)


def test_nothing_found(backend):
    bottoms = [LOCATION, SCORE.reshape(N, -1), PRIOR]
    one = make_layer(text("confidence_threshold: 1"), bottoms, device=backend)

    [rows] = one.forward()

    np.testing.assert_array_equal(rows, [[[[0, *[-1] * 6], [1, *[-1] * 6]]]])


def test_in_a_net_the_number_of_rows_follows_the_values(backend):
    message = f"""
        layer {{ type: "Input" name: "in" top: "l" top: "s" top: "p"
          input_param {{ shape {{ dim: {N} dim: {PRIORS * 4} }}
            shape {{ dim: {N} dim: {PRIORS * CLASSES} }} shape {{ dim: [1, 2, {PRIORS * 4}] }} }} }}
        layer {{ {text("confidence_threshold: 0.3")} name: "d"
          bottom: "l" bottom: "s" bottom: "p" top: "rows" }}
        layer {{ type: "Power" name: "twice" bottom: "rows" top: "twice"
          power_param {{ scale: 2 }} }}"""
    net = Net(parse_text(message, NetParameter), "TEST", device=backend, dtype="float64")
    expected = detect(confidence=np.float32(0.3))
    few = SCORE.reshape(N, -1).copy()
    few[1] = 0

    out = net.predict({"l": LOCATION, "s": SCORE.reshape(N, -1), "p": PRIOR})
    fewer = net.predict({"l": LOCATION, "s": few, "p": PRIOR})

    np.testing.assert_allclose(out["twice"][0, 0], 2 * expected, rtol=1e-6)
    np.testing.assert_allclose(fewer["twice"][0, 0], 2 * expected[expected[:, 0] == 0], rtol=1e-6)


def test_there_is_no_gradient():
    one = make_layer(text(), [LOCATION, SCORE.reshape(N, -1), PRIOR])
    one.forward()

    with expect_error(NetError, ErrorCode.NO_GRADIENT, type="DetectionOutput"):
        one.backward(propagate_down=[True, False, False])


def test_files_are_not_written(tmp_path, caplog):
    folder = tmp_path / "results"
    fields = f'save_output_param {{ output_directory: "{folder.as_posix()}" output_format: "VOC" }}'

    with caplog.at_level(logging.WARNING, "demitasse"):
        make_layer(text(fields), [LOCATION, SCORE.reshape(N, -1), PRIOR]).forward()

    assert folder.as_posix() in caplog.text
    assert not folder.exists()


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ("num_classes: 0", ErrorCode.OUT_OF_RANGE, "detection_output_param.num_classes"),
        (
            "num_classes: 3 visualize: true",
            ErrorCode.UNSUPPORTED,
            "detection_output_param.visualize",
        ),
        (
            "num_classes: 3 nms_param { nms_threshold: -0.5 }",
            ErrorCode.OUT_OF_RANGE,
            "nms_param.nms_threshold",
        ),
        ("num_classes: 3 nms_param { eta: 0 }", ErrorCode.OUT_OF_RANGE, "nms_param.eta"),
        ("num_classes: 3 nms_param { eta: 1.5 }", ErrorCode.OUT_OF_RANGE, "nms_param.eta"),
    ],
)
def test_refused(fields, code, field):
    with expect_error(ConfigError, code, field=field):
        make_layer(
            f'type: "DetectionOutput" detection_output_param {{ {fields} }}',
            [LOCATION, SCORE.reshape(N, -1), PRIOR],
        )


@pytest.mark.parametrize(
    ("index", "shape", "mentions"),
    [
        (0, (N, PRIORS * 4 + 1), ["4", "12"]),
        (1, (N, PRIORS), ["3", "12"]),
        (1, (1, PRIORS * CLASSES), ["3", "12"]),
        (2, (1, 1, PRIORS * 8), "(1, 2, P 4)"),
        (2, (1, 2, 2), "(1, 2, P 4)"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(index, shape, mentions):
    bottoms = [LOCATION, SCORE.reshape(N, -1), PRIOR]
    bottoms[index] = np.zeros(shape)

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=mentions):
        make_layer(text(), bottoms)
