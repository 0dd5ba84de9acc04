"""ROIPooling and PSROIPooling, against loops over pixels as the forks write them."""

import math

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
N, H, W = 2, 9, 12
ROIS = np.array(
    [
        [0, 8, 16, 80, 120],
        [1, 0, 0, 191, 143],  # the whole image
        [0, -40, -40, 20, 30],  # begins outside
        [1, 100, 60, 400, 400],  # ends outside
        [0, 500, 500, 600, 600],  # all outside
        [1, 50, 50, 50, 50],  # one pixel
        [1, 90, 80, 40, 30],  # the wrong way round
        [0, 24, 40, 56, 72],  # corners at halves
    ],
    dtype=float,
)


def away(value):
    """C's round: halves away from zero."""
    return math.copysign(math.floor(abs(value) + 0.5), value)


class TestROIPooling:
    SCALE = 0.0625

    @staticmethod
    def text(fields="pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625", more=""):
        return f'type: "ROIPooling" roi_pooling_param {{ {fields} }} {more}'

    @classmethod
    def loop(cls, x, rois, height, width):
        y = np.empty((len(rois), x.shape[1], height, width))
        for r, roi in enumerate(rois):
            x1, y1, x2, y2 = (int(away(v * cls.SCALE)) for v in roi[1:])
            tall = max(y2 - y1 + 1, 1) / height
            wide = max(x2 - x1 + 1, 1) / width
            for i in range(height):
                for j in range(width):
                    top = min(max(math.floor(i * tall) + y1, 0), H)
                    bottom = min(max(math.ceil((i + 1) * tall) + y1, 0), H)
                    left = min(max(math.floor(j * wide) + x1, 0), W)
                    right = min(max(math.ceil((j + 1) * wide) + x1, 0), W)
                    for c in range(x.shape[1]):
                        seen = x[int(roi[0]), c, top:bottom, left:right]
                        y[r, c, i, j] = seen.max() if seen.size else 0
        return y

    @pytest.mark.parametrize("size", [(3, 2), (1, 1), (7, 7), (9, 12)])
    def test_against_a_loop(self, size, backend):
        x = RNG.normal(0, 1, (N, 3, H, W))
        fields = f"pooled_h: {size[0]} pooled_w: {size[1]} spatial_scale: {self.SCALE}"
        one = make_layer(self.text(fields), [x, ROIS], device=backend)

        [y] = one.forward()

        np.testing.assert_array_equal(y, self.loop(x, ROIS, *size))

    def test_other_regions_are_looked_at_anew(self, backend):
        x = RNG.normal(0, 1, (N, 3, H, W))
        one = make_layer(self.text(), [x, ROIS], device=backend)

        for rois in (ROIS, ROIS[::-1], ROIS + np.array([0, 16, 0, 32, 16])):
            np.testing.assert_array_equal(one.forward(x, rois)[0], self.loop(x, rois, 3, 2))

    def test_gradients(self, backend):
        x = RNG.permutation(N * 2 * H * W).reshape(N, 2, H, W) / 10  # no ties

        expect_gradients(self.text(), x, ROIS, threshold=1e-7, device=backend)

    def test_the_gradient_goes_to_the_first_of_equal_values(self, backend):
        one = make_layer(
            self.text("pooled_h: 1 pooled_w: 1"),
            [np.ones((1, 1, 2, 2)), [[0, 0, 0, 1, 1]]],
            device=backend,
        )
        one.forward()

        np.testing.assert_array_equal(one.backward([[[[3.0]]]])[0], [[[[3, 0], [0, 0]]]])

    @pytest.mark.parametrize("shape", [(8, 5, 1, 1), (8, 1, 5)])
    def test_regions_may_have_more_axes(self, shape, backend):
        x = RNG.normal(0, 1, (N, 3, H, W))
        one = make_layer(self.text(), [x, ROIS.reshape(shape)], device=backend)

        np.testing.assert_array_equal(one.forward()[0], self.loop(x, ROIS, 3, 2))

    def test_no_regions(self, backend):
        one = make_layer(self.text(), [np.zeros((N, 3, H, W)), np.zeros((0, 5))], device=backend)

        assert one.forward()[0].shape == (0, 3, 3, 2)
        np.testing.assert_array_equal(one.backward()[0], 0)

    def test_bins_end_where_single_precision_says(self, backend):
        rois = [[0, 0, 0, 8, 0]]  # a ninth of 9 pixels, times 9
        x = np.arange(12.0).reshape(1, 1, 1, 12)
        fields = "pooled_h: 1 pooled_w: 9"
        one = make_layer(self.text(fields), [x, rois], device=backend, dtype="float32")

        np.testing.assert_array_equal(one.forward()[0].reshape(-1), np.arange(9))

    @pytest.mark.parametrize("item", [-1, 2, np.nan])
    def test_an_image_that_is_not_there_is_refused(self, item):
        rois = ROIS.copy()
        rois[3, 0] = item

        with expect_error(ShapeError, mentions=["region 3", "2"]):
            make_layer(self.text(), [np.zeros((N, 1, H, W)), rois]).forward()

    @pytest.mark.parametrize("fields", ["pooled_h: 3", "pooled_w: 3"])
    def test_no_size_is_refused(self, fields):
        with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, mentions="roi_pooling_param"):
            make_layer(self.text(fields), [np.zeros((N, 1, H, W)), ROIS])

    @pytest.mark.parametrize(
        "bottoms", [[np.zeros((1, 2, 3)), ROIS], [np.zeros((1, 2, 3, 4)), ROIS[:, :4]]]
    )
    def test_other_shapes_are_refused(self, bottoms):
        with expect_error(
            ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["(N, C, H, W)", "(R, 5)"]
        ):
            make_layer(self.text(), bottoms)

    def test_a_gradient_of_regions_is_asked_for_in_vain(self):
        text = self.text(more="propagate_down: [true, true]")
        one = make_layer(text, [np.zeros((N, 1, H, W)), ROIS])
        one.forward()

        [dx, nothing] = one.backward(np.ones_like(one.top[0].data), propagate_down=[True, True])

        assert dx.any()
        assert not nothing.any()

    def test_in_place_is_refused(self):
        more = 'bottom: "x" bottom: "r" top: "x"'
        with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
            make_layer(self.text(more=more), [np.zeros((N, 1, H, W)), ROIS])


class TestPSROIPooling:
    SCALE, DIM, GROUP = 0.0625, 2, 3

    @staticmethod
    def text(fields="spatial_scale: 0.0625 output_dim: 2 group_size: 3"):
        return f'type: "PSROIPooling" psroi_pooling_param {{ {fields} }}'

    @classmethod
    def loop(cls, x, rois):
        g = cls.GROUP
        y = np.zeros((len(rois), cls.DIM, g, g))
        for r, roi in enumerate(rois):
            x1, y1 = (away(v) * cls.SCALE for v in roi[1:3])
            x2, y2 = ((away(v) + 1) * cls.SCALE for v in roi[3:5])
            wide, tall = max(x2 - x1, 0.1) / g, max(y2 - y1, 0.1) / g
            for d in range(cls.DIM):
                for i in range(g):
                    for j in range(g):
                        top = min(max(math.floor(i * tall + y1), 0), H)
                        bottom = min(max(math.ceil((i + 1) * tall + y1), 0), H)
                        left = min(max(math.floor(j * wide + x1), 0), W)
                        right = min(max(math.ceil((j + 1) * wide + x1), 0), W)
                        channel = (d * g + i) * g + j
                        seen = x[int(roi[0]), channel, top:bottom, left:right]
                        y[r, d, i, j] = seen.mean() if seen.size else 0
        return y

    def x(self):
        return RNG.normal(0, 1, (N, self.DIM * self.GROUP**2, H, W))

    def test_against_a_loop(self, backend):
        x = self.x()
        one = make_layer(self.text(), [x, ROIS], device=backend)

        [y] = one.forward()

        np.testing.assert_allclose(y, self.loop(x, ROIS), rtol=1e-12, atol=1e-12)

    def test_gradients(self, backend):
        x = self.x()[:, :, :4, :4]

        expect_gradients(self.text(), x, ROIS, threshold=1e-7, device=backend)

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ("output_dim: 2 group_size: 3", "psroi_pooling_param.spatial_scale"),
            ("spatial_scale: 1 group_size: 3", "psroi_pooling_param.output_dim"),
            ("spatial_scale: 1 output_dim: 2", "psroi_pooling_param.group_size"),
        ],
    )
    def test_missing_fields_are_refused(self, fields, field):
        with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field=field):
            make_layer(self.text(fields), [self.x(), ROIS])

    def test_other_channels_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["18", "output_dim", "2"]):
            make_layer(self.text(), [self.x()[:, 1:], ROIS])


@pytest.mark.parametrize(
    "fields",
    [
        'type: "ROIPooling" roi_pooling_param { pooled_h: 2 pooled_w: 2 }',
        'type: "ROIAlign" roi_pooling_param { pooled_h: 2 pooled_w: 2 }',
        'type: "PSROIPooling" psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 1 }',
    ],
)
def test_backward_needs_a_forward_pass(fields):
    one = make_layer(fields, [np.zeros((N, 4, H, W)), ROIS])

    with expect_error(NetError, ErrorCode.BAD_STATE, mentions="run forward"):
        one.layer.backward(one.top, [True, False], one.bottom)
