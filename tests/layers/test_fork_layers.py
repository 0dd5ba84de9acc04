"""Layers of Synopsys Caffe, MobileNet-YOLO and Cascade R-CNN against plain loops."""

import math

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, parse_text


def net_of(layer, inputs, backend, phase="TEST", top="y"):
    """A net of one layer over inputs of these values, after a forward pass."""
    lines = ["force_backward: true"]
    for name, value in inputs.items():
        dims = " ".join(f"dim: {n}" for n in np.shape(value))
        lines.append(f'layer {{ name: "{name}" type: "Input" top: "{name}" '
                     f"input_param {{ shape {{ {dims} }} }} }}")  # fmt: skip
    bottoms = " ".join(f'bottom: "{name}"' for name in inputs)
    lines.append(f'layer {{ name: "layer" {bottoms} top: "{top}" {layer} }}')
    net = Net(parse_text("\n".join(lines), NetParameter), phase, device=backend)
    for name, value in inputs.items():
        net.blobs[name].data[...] = value
    net.forward()
    return net


def top_of(*arguments, **options):
    return np.array(net_of(*arguments, **options).blobs["y"].data)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


# -- Squeeze and HardSwish -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("", (2, 3)),
        ("squeeze_param { axis: 1 }", (2, 3, 1)),
        ("squeeze_param { axis: -1 axis: 1 }", (2, 3)),
    ],
)
def test_axes_of_size_1_are_removed(fields, shape, backend):
    x = np.arange(6.0).reshape(2, 1, 3, 1)

    net = net_of(f'type: "Squeeze" {fields}', {"x": x}, backend)
    net.blobs["y"].diff[...] = np.arange(6.0).reshape(shape) + 1
    net.backward()

    assert net.blobs["y"].shape == shape
    np.testing.assert_array_equal(net.blobs["y"].data, x.reshape(shape))
    np.testing.assert_array_equal(net.blobs["x"].diff, x + 1)


@pytest.mark.parametrize("axis", [0, 4, -5])
def test_an_axis_that_cannot_be_removed_is_refused(axis, backend):
    with expect_error(ShapeError, mentions=str(axis)):
        net_of(f'type: "Squeeze" squeeze_param {{ axis: {axis} }}', {"x": np.ones((2, 1, 3, 1))},
               backend)  # fmt: skip


def test_hard_swish_is_its_formula(backend):
    x = np.array([-100, -3, -2.9, -1, -0.0, 0, 1.5, 2.9, 3, 7, np.inf, np.nan], np.float32)

    y = top_of('type: "HardSwish"', {"x": x}, backend)

    want = [v * min(max(v + 3, 0), 6) / 6 if not math.isnan(v) else v for v in x.tolist()]
    np.testing.assert_allclose(y, want, rtol=1e-6)


# -- ROIAlign --------------------------------------------------------------------------------------


def align(x, rois, bins, scale, ratio):
    """The values at the corners of all bins, one by one."""
    height, width = x.shape[2:]
    y = np.zeros((len(rois), x.shape[1], bins[0] + 1, bins[1] + 1))
    for number, (item, x1, y1, x2, y2) in enumerate(rois):
        wide, high = (x2 - x1 + 1) * ratio, (y2 - y1 + 1) * ratio
        left, right = (x1 - wide) * scale - 0.5, (x2 + wide) * scale - 0.5
        top, bottom = (y1 - high) * scale - 0.5, (y2 + high) * scale - 0.5
        if right <= left or bottom <= top:
            continue
        for i in range(bins[0] + 1):
            for j in range(bins[1] + 1):
                row = top + i * (bottom - top) / bins[0]
                column = left + j * (right - left) / bins[1]
                if not (-0.5 <= row <= height - 0.5 and -0.5 <= column <= width - 0.5):
                    continue
                for r in range(height):
                    for c in range(width):
                        near = max(0, 1 - abs(min(max(row, 0), height - 1) - r))
                        near *= max(0, 1 - abs(min(max(column, 0), width - 1) - c))
                        y[number, :, i, j] += near * x[int(item), :, r, c]
    return y


@pytest.mark.parametrize("ratio", [0, 0.25])
def test_roi_align_interpolates_the_corners_of_bins(ratio, backend):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 3, 6, 5)).astype(np.float32)
    corners = rng.uniform(0, 45, (8, 2))
    rois = np.column_stack([rng.integers(0, 2, 8), corners, corners + rng.uniform(-4, 40, (8, 2))])
    rois = rois.astype(np.float32)
    fields = f"pooled_h: 3 pooled_w: 2 spatial_scale: 0.125 pad_ratio: {ratio}"

    y = top_of(
        f'type: "ROIAlign" roi_pooling_param {{ {fields} }}', {"x": x, "rois": rois}, backend
    )

    np.testing.assert_allclose(y, align(x, rois, (3, 2), 0.125, ratio), atol=1e-4)


def test_roi_align_of_mask_rcnn_is_refused_by_the_name_of_its_fork():
    from demitasse.errors import PrototxtError

    text = 'layer { type: "ROIAlign" roi_align_param { pooled_h: 7 pooled_w: 7 } }'
    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions="Synopsys"):
        parse_text(text, NetParameter)


# -- YOLO ------------------------------------------------------------------------------------------


def iou(a, b):
    def along(i):
        return min(a[i + 2], b[i + 2]) - max(a[i], b[i])

    shared = along(0) * along(1) if min(along(0), along(1)) > 0 else 0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return shared / (sum(areas) - shared)


def suppressed(candidates, limit):
    """Rows of class, score and box that stay, the best first."""
    candidates = sorted(candidates, key=lambda row: -row[1])
    stay = []
    for row in candidates:
        if all(iou(row[2:], better[2:]) < limit for better in stay):
            stay.append(row)
    return stay


def box_of(values, i, j, width, height, anchor):
    x, y = (j + sigmoid(values[0])) / width, (i + sigmoid(values[1])) / height
    w, h = math.exp(values[2]) * anchor[0], math.exp(values[3]) * anchor[1]
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def yolo2(maps, anchors, classes, least, limit):
    rows = []
    for item in range(len(maps)):
        found = []
        height, width = maps.shape[2:]
        for i in range(height):
            for j in range(width):
                for a, (w, h) in enumerate(anchors):
                    values = maps[item, a * (5 + classes) : (a + 1) * (5 + classes), i, j].tolist()
                    shares = [math.exp(v) for v in values[5:]]
                    best = max(range(classes), key=shares.__getitem__)
                    score = sigmoid(values[4]) * shares[best] / sum(shares)
                    if score >= least:
                        box = box_of(values, i, j, width, height, (w / width, h / height))
                        found.append((best + 1, score, *box))
        rows += [(item, *row) for row in suppressed(found, limit)]
    return rows


@pytest.mark.parametrize("limit", [0.2, 0.6])
def test_yolo_2_reads_the_best_class_of_each_anchor(limit, backend):
    maps = np.random.default_rng(1).normal(size=(2, 2 * 8, 4, 4)).astype(np.float32)
    fields = (f"num_classes: 3 num_box: 2 biases: [1.1, 1.2, 2.4, 2.5] confidence_threshold: 0.3 "
              f"nms_threshold: {limit}")  # fmt: skip

    y = top_of(f'type: "YoloDetectionOutput" yolo_detection_output_param {{ {fields} }}',
               {"x": maps}, backend)  # fmt: skip

    want = yolo2(maps, [(1.1, 1.2), (2.4, 2.5)], 3, 0.3, limit)
    assert len(want) > 4
    np.testing.assert_allclose(y[0, 0], want, rtol=1e-4, atol=1e-5)


def yolo3(maps, groups, scales, classes, least, limit):
    rows = []
    for item in range(len(maps[0])):
        found = []
        for map_, anchors, scale in zip(maps, groups, scales, strict=True):
            height, width = map_.shape[2:]
            for i in range(height):
                for j in range(width):
                    for a, (w, h) in enumerate(anchors):
                        part = slice(a * (5 + classes), (a + 1) * (5 + classes))
                        values = map_[item, part, i, j].tolist()
                        size = w / (width * scale), h / (height * scale)
                        for kind in range(classes):
                            score = sigmoid(values[4]) * sigmoid(values[5 + kind])
                            if score > least:
                                box = box_of(values, i, j, width, height, size)
                                found.append((kind + 1, score, *box))
        rows += [(item, *row) for row in suppressed(found, limit)]
    return rows


def test_yolo_3_reads_every_class_of_each_anchor(backend):
    rng = np.random.default_rng(2)
    maps = [rng.normal(size=(2, 2 * 7, *size)).astype(np.float32) for size in ((2, 3), (4, 6))]
    fields = """num_classes: 2 num_box: 2 mask_group_num: 2 confidence_threshold: 0.4
        biases: [10, 14, 23, 27, 37, 58, 81, 82] mask: [2, 3, 0, 1] anchors_scale: [32, 16]"""

    y = top_of(f'type: "Yolov3DetectionOutput" yolov3_detection_output_param {{ {fields} }}',
               {"a": maps[0], "b": maps[1]}, backend)  # fmt: skip

    groups = [[(37, 58), (81, 82)], [(10, 14), (23, 27)]]
    want = yolo3(maps, groups, [32, 16], 2, 0.4, 0.45)
    assert len(want) > 4
    np.testing.assert_allclose(y[0, 0], want, rtol=1e-4, atol=1e-5)


def test_maps_without_a_detection_give_a_row_for_each_image(backend):
    fields = "num_classes: 1 num_box: 1 biases: [1, 1] confidence_threshold: 0.9"

    y = top_of(f'type: "YoloDetectionOutput" yolo_detection_output_param {{ {fields} }}',
               {"x": np.zeros((2, 6, 1, 1))}, backend)  # fmt: skip

    np.testing.assert_array_equal(y[0, 0], [[0, *[-1] * 6], [1, *[-1] * 6]])


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ("num_classes: 1 num_box: 2 biases: [1, 1]", ConfigError, ErrorCode.COUNT_MISMATCH),
        ("num_box: 1 biases: [1, 1]", ConfigError, ErrorCode.MISSING),
        ("num_classes: 1 num_box: 1", ConfigError, ErrorCode.OUT_OF_RANGE),
        ("num_classes: 1 num_box: 1 biases: [1, 1] coords: 5", ConfigError, ErrorCode.OUT_OF_RANGE),
        ("num_classes: 2 num_box: 1 biases: [1, 1]", ShapeError, ErrorCode.SHAPE_MISMATCH),
    ],
)
def test_fields_that_do_not_fit_a_yolo_2_are_refused(fields, error, code):
    with expect_error(error, code):
        net_of(f'type: "YoloDetectionOutput" yolo_detection_output_param {{ {fields} }}',
               {"x": np.zeros((1, 6, 2, 2))}, "numpy")  # fmt: skip


# -- Cascade R-CNN ---------------------------------------------------------------------------------

REGRESSION = "bbox_reg_param { bbox_mean: [0, 0.1, 0, 0.2] bbox_std: [0.1, 0.1, 0.2, 0.3] }"
MEAN, STD = (0, 0.1, 0, 0.2), (0.1, 0.1, 0.2, 0.3)


def decoded(code, roi):
    x1, y1, x2, y2 = roi
    bx, by, bw, bh = (c * s + m for c, s, m in zip(code, STD, MEAN, strict=True))
    w, h = x2 - x1 + 1, y2 - y1 + 1
    cx, cy = bx * w + (x1 + x2) / 2, by * h + (y1 + y2) / 2
    w, h = w * math.exp(bw), h * math.exp(bh)
    return cx - (w - 1) / 2, cy - (h - 1) / 2, cx + (w - 1) / 2, cy + (h - 1) / 2


def regions(rng, count):
    corners = rng.uniform(0, 40, (count, 2))
    return np.column_stack([rng.integers(0, 2, count), corners, corners + rng.uniform(3, 30, 2)])


def test_regions_move_as_predicted(backend):
    rng = np.random.default_rng(4)
    codes, rois = rng.normal(size=(6, 8)), regions(rng, 6)

    y = top_of(f'type: "DecodeBBox" {REGRESSION}', {"codes": codes, "rois": rois}, backend)

    assert y.shape == (6, 5, 1, 1)
    want = [(roi[0], *decoded(code[4:], roi[1:])) for code, roi in zip(codes, rois, strict=True)]
    np.testing.assert_allclose(y.reshape(6, 5), want, rtol=1e-4, atol=1e-4)


def test_regions_that_are_objects_are_left_out_in_training(backend):
    rng = np.random.default_rng(4)
    codes, rois = rng.normal(size=(4, 8)), regions(rng, 4)
    objects = np.column_stack([np.zeros((4, 5)), [0.2, 0.95, 0.96, 0.94]])

    y = top_of(f'type: "DecodeBBox" {REGRESSION} decode_bbox_param {{ gt_iou_thr: 0.95 }}',
               {"codes": codes, "rois": rois, "objects": objects}, backend,
               phase="TRAIN")  # fmt: skip

    want = [(rois[i, 0], *decoded(codes[i, 4:], rois[i, 1:])) for i in (0, 3)]
    np.testing.assert_allclose(y.reshape(2, 5), want, rtol=1e-4, atol=1e-4)


def test_objects_in_testing_and_no_region_at_all_are_refused():
    inputs = {"codes": np.zeros((2, 8)), "rois": regions(np.random.default_rng(1), 2)}
    inputs["objects"] = np.ones((2, 6))

    with expect_error(NetError, ErrorCode.CONFLICT):
        net_of('type: "DecodeBBox"', inputs, "numpy")
    with expect_error(NetError, ErrorCode.OUT_OF_RANGE):
        net_of('type: "DecodeBBox"', inputs, "numpy", phase="TRAIN")


def pixel_iou(a, b):
    return iou((*a[:2], a[2] + 1, a[3] + 1), (*b[:2], b[2] + 1, b[3] + 1))


def grouped(scores, codes, groups, images, least=0.3, limit=0.5, most=None, small=3):
    rows = []
    for item in range(images):
        found = []
        for score, code, (anchors, stride) in zip(scores, codes, groups, strict=True):
            height, width = code.shape[2:]
            for a, (fw, fh) in enumerate(anchors):
                number = item * len(anchors) + a
                for i in range(height):
                    for j in range(width):
                        bx, by, bw, bh = (
                            c * s + m
                            for c, s, m in zip(code[number, :, i, j], STD, MEAN, strict=True)
                        )
                        bx, by = (min(max(b, -0.5), 0.5) for b in (bx, by))
                        bw, bh = (min(max(b, -math.log(2)), math.log(2)) for b in (bw, bh))
                        w, h = fw * math.exp(bw), fh * math.exp(bh)
                        x = bx * fw + (j + 0.5) * stride - w / 2
                        y = by * fh + (i + 0.5) * stride - h / 2
                        box = (max(x, 0), max(y, 0), min(x + w - 1, width * stride),
                               min(y + h - 1, height * stride))  # fmt: skip
                        chance = 1 - score[number, 0, i, j]
                        sides = box[2] - box[0] + 1, box[3] - box[1] + 1
                        if chance >= least and min(sides) >= small:
                            found.append((*box, chance))
        stay = []
        for row in sorted(found, key=lambda row: -row[4]):
            if all(pixel_iou(row[:4], better[:4]) <= limit for better in stay):
                stay.append(row)
        rows += [(item, *row) for row in stay[:most]]
    return rows


@pytest.mark.parametrize("most", [0, 5])
def test_regions_of_several_maps_are_collected(most, backend):
    rng = np.random.default_rng(5)
    shapes = [(4, 4), (2, 3)]
    groups = [([(12, 10), (9, 16)], 8), ([(30, 24)], 16)]
    scores = [
        rng.uniform(0, 1, (2 * len(g[0]), 3, *s)) for g, s in zip(groups, shapes, strict=True)
    ]
    codes = [
        3 * rng.normal(size=(2 * len(g[0]), 4, *s)) for g, s in zip(groups, shapes, strict=True)
    ]
    fields = "".join(
        f" box_group_param {{ {' '.join(f'field_w: {w} field_h: {h}' for w, h in anchors)} "
        f"stride: {stride} }}"
        for anchors, stride in groups
    )
    fields = f"fg_thr: 0.3 iou_thr: 0.5 min_size: 3 max_post_nms_num: {most} {fields}"
    inputs = {"s0": scores[0], "c0": codes[0], "s1": scores[1], "c1": codes[1]}

    net = net_of(f'type: "BoxGroupOutput" {REGRESSION} top: "scored" '
                 f"box_group_output_param {{ {fields} }}", inputs, backend)  # fmt: skip

    want = np.array(grouped(scores, codes, groups, 2, most=most or None))
    got = np.array(net.blobs["y"].data)
    assert got.shape == (len(want), 5, 1, 1)
    np.testing.assert_allclose(got[..., 0, 0], want[:, :5], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(net.blobs["scored"].data[..., 0, 0], want, rtol=1e-4, atol=1e-4)


def test_maps_without_a_region_give_one(backend):
    inputs = {"s": np.ones((1, 2, 2, 2)), "c": np.zeros((1, 4, 2, 2))}
    fields = "fg_thr: 0.5 box_group_param { field_h: 20 field_w: 20 stride: 8 }"

    net = net_of(f'type: "BoxGroupOutput" top: "scored" box_group_output_param {{ {fields} }}',
                 inputs, backend)  # fmt: skip

    np.testing.assert_array_equal(net.blobs["y"].data.reshape(-1), [0, 1, 1, 10, 10])
    np.testing.assert_array_equal(net.blobs["scored"].data.reshape(-1), [0] * 6)


def test_batch_norm_of_intel_with_fillers_scales_and_shifts(backend):
    x = np.random.default_rng(1).normal(size=(4, 2, 3, 3))
    fields = "batch_norm_param { filler { value: 2 } bias_filler { value: 3 } }"

    net = net_of(f'type: "BatchNorm" {fields}', {"x": x}, backend, phase="TRAIN")

    assert len(net.params["layer"]) == 5
    spread = np.sqrt(x.var(axis=(0, 2, 3), keepdims=True) + 1e-5)
    want = (x - x.mean(axis=(0, 2, 3), keepdims=True)) / spread * 2 + 3
    np.testing.assert_allclose(net.blobs["y"].data, want, atol=1e-4)
