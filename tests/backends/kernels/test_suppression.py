"""Non-maximum suppression of boxes, against numpy."""

import numpy as np
import pytest

from demitasse.backends.kernels.suppression import suppressed
from demitasse.layers.detection.boxes import portable, suppress

ODD = np.array([np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-30, 0.0, -0.0], np.float32)
LIMITS = [1e-37, 0.3, 0.5, 1.0, np.inf, -1e-37]  # kernels take subnormal overlaps for 0


def some_boxes(count, seed, *, odd=False):
    """Return boxes, some of which coincide or have swapped corners."""
    rng = np.random.default_rng(seed)
    corner, size = rng.random((count, 2)), rng.random((count, 2)) - 0.1
    boxes = np.concatenate([corner, corner + size], axis=1).astype(np.float32)
    boxes[::3] = np.round(boxes[::3] * 4) / 4
    if odd:
        places = rng.random(boxes.shape) < 0.1
        boxes[places] = rng.choice(ODD, places.sum())
    return boxes


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 70])
def test_the_same_boxes_stay_as_in_numpy(count, limit, odd):
    boxes, limits = some_boxes(count, 1, odd=odd), np.array([limit], np.float32)

    with np.errstate(all="ignore"):
        expected = portable(boxes, limits, count, 0, count)

    assert suppressed(boxes, limits, count, [count]) == expected


@pytest.mark.parametrize("most", [0, 1, 5, 100])
def test_groups_have_limits_that_fall_and_a_greatest_number_of_their_own(most):
    boxes, counts = some_boxes(70, 2), [20, 0, 1, 49]
    limits = np.array([0.9, 0.6, 0.4], np.float32)

    ends = np.cumsum(counts).tolist()
    expected = [
        index
        for count, end in zip(counts, ends, strict=True)
        for index in portable(boxes, limits, most, end - count, end)
    ]

    assert suppressed(boxes, limits, most, counts) == expected


def test_groups_that_are_not_all_boxes_are_refused():
    with pytest.raises(ValueError, match="groups of"):
        suppressed(some_boxes(9, 3), np.ones(1, np.float32), 9, [4, 6])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_boxes_leave_no_indices(dtype):
    assert suppress(np.empty((0, 4), dtype), 0.5) == []
