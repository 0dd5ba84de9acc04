"""Layers of the forks that move pixels and channels: ShuffleChannel, Reorg, Interp, Upsample."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.layers import upsample
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (2, 4, 3, 5))
IN_PLACE = 'bottom: "x" top: "x"'


class TestShuffleChannel:
    @staticmethod
    def text(group, more=""):
        return f'type: "ShuffleChannel" shuffle_channel_param {{ group: {group} }} {more}'

    @pytest.mark.parametrize("group", [1, 2, 3, 6])
    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_against_a_loop(self, group, more, backend):
        x = RNG.normal(0, 1, (2, 6, 2, 3))
        one = make_layer(self.text(group, more), [x], device=backend)
        expected = np.empty_like(x)
        for i in range(group):
            for j in range(6 // group):
                expected[:, j * group + i] = x[:, i * (6 // group) + j]

        [y] = one.forward(x)

        np.testing.assert_array_equal(y, expected)

    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_gradients(self, more, backend):
        expect_gradients(
            self.text(3, more), RNG.normal(0, 1, (2, 6, 2)), threshold=1e-8, device=backend
        )

    def test_groups_that_do_not_divide_are_refused(self):
        with expect_error(
            ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["ShuffleChannel", "group 3"]
        ):
            make_layer(self.text(3), [X])

    def test_no_group_is_refused(self):
        with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="shuffle_channel_param.group"):
            make_layer(self.text(0), [X])


class TestReorg:
    @staticmethod
    def text(fields, more=""):
        return f'type: "Reorg" reorg_param {{ {fields} }} {more}'

    @staticmethod
    def loop(x, s, reverse):
        """Darknet's indices: of the memory as it is, and as if it were of blocks."""
        n, c, h, w = x.shape
        less, flat = c // (s * s), x.reshape(n, -1)
        out = np.empty_like(flat)
        for k in range(c):
            for j in range(h):
                for i in range(w):
                    block = k // less
                    row, column = j * s + block // s, i * s + block % s
                    plain = i + w * (j + h * k)
                    blocked = column + w * s * (row + h * s * (k % less))
                    if reverse:
                        out[:, blocked] = flat[:, plain]
                    else:
                        out[:, plain] = flat[:, blocked]
        shape = (n, less, h * s, w * s) if reverse else (n, c * s * s, h // s, w // s)
        return out.reshape(shape)

    @pytest.mark.parametrize(
        ("s", "shape"), [(2, (2, 4, 6, 4)), (1, (1, 2, 3, 3)), (3, (1, 9, 3, 6))]
    )
    @pytest.mark.parametrize("reverse", [False, True])
    def test_against_a_loop(self, s, shape, reverse, backend):
        x = RNG.normal(0, 1, shape)
        fields = f"stride: {s} reverse: {str(reverse).lower()}"
        one = make_layer(self.text(fields), [x], device=backend)

        [y] = one.forward()

        np.testing.assert_array_equal(y, self.loop(x, s, reverse))

    @pytest.mark.parametrize("reverse", ["true", "false"])
    def test_gradients(self, reverse, backend):
        x = RNG.normal(0, 1, (2, 4, 2, 4))

        expect_gradients(
            self.text(f"stride: 2 reverse: {reverse}"), x, threshold=1e-8, device=backend
        )

    @pytest.mark.parametrize(
        ("fields", "shape", "error", "code", "mentions"),
        [
            ("", (1, 4, 4, 4), ConfigError, ErrorCode.OUT_OF_RANGE, ["reorg_param.stride", "0"]),
            ("stride: 2", (1, 6, 4, 4), ShapeError, ErrorCode.SHAPE_MISMATCH, "4"),
            ("stride: 2", (1, 4, 3, 4), ShapeError, ErrorCode.SHAPE_MISMATCH, "2"),
            ("stride: 2", (4, 4, 4), ShapeError, ErrorCode.SHAPE_MISMATCH, "(N, C, H, W)"),
        ],
    )
    def test_refused(self, fields, shape, error, code, mentions):
        with expect_error(error, code, mentions=mentions):
            make_layer(self.text(fields), [np.zeros(shape)])

    def test_in_place_is_refused(self):
        with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
            make_layer(self.text("stride: 1", IN_PLACE), [X])


class TestInterp:
    def test_the_size_may_be_that_of_another_blob(self, backend):
        x, like = RNG.normal(size=(2, 3, 4, 5)), np.zeros((1, 1, 7, 3))
        one = make_layer(self.text("use_blob_size: true"), [x, like], device=backend)

        [y] = one.forward()

        np.testing.assert_allclose(y, self.loop(x, 7, 3), rtol=1e-6)

    def test_another_blob_is_there_for_its_size_only(self):
        for fields, count in (("use_blob_size: true", 1), ("zoom_factor: 2", 2)):
            with expect_error(NetError, ErrorCode.CONFLICT, field="interp_param.use_blob_size"):
                make_layer(self.text(fields), [np.zeros((1, 1, 4, 5))] * count)

    @staticmethod
    def text(fields, more=""):
        return f'type: "Interp" interp_param {{ {fields} }} {more}'

    @staticmethod
    def loop(x, height, width):
        """Every pixel of the top from its four neighbours."""
        n, c, h, w = x.shape
        y = np.empty((n, c, height, width))
        for i in range(height):
            for j in range(width):
                a = i * (h - 1) / (height - 1) if height > 1 else 0
                b = j * (w - 1) / (width - 1) if width > 1 else 0
                i0, j0 = int(a + 1e-9), int(b + 1e-9)
                i1, j1 = min(i0 + 1, h - 1), min(j0 + 1, w - 1)
                s, t = a - i0, b - j0
                above = x[..., i0, j0] * (1 - t) + x[..., i0, j1] * t
                below = x[..., i1, j0] * (1 - t) + x[..., i1, j1] * t
                y[..., i, j] = above * (1 - s) + below * s
        return y

    @pytest.mark.parametrize(
        ("fields", "size"),
        [
            ("height: 6 width: 9", (6, 9)),
            ("height: 3 width: 5", (3, 5)),
            ("height: 2 width: 3", (2, 3)),
            ("height: 1 width: 1", (1, 1)),
            ("zoom_factor: 3", (7, 13)),
            ("shrink_factor: 2", (2, 3)),
            ("shrink_factor: 2 zoom_factor: 4", (5, 9)),
            ("shrink_factor: 2 zoom_factor: 4 height: 8 width: 7", (8, 7)),
            ("zoom_factor: 2 height: 8 width: 7", (5, 9)),
        ],
    )
    def test_against_a_loop(self, fields, size, backend):
        one = make_layer(self.text(fields), [X], device=backend)

        [y] = one.forward()

        np.testing.assert_allclose(y, self.loop(X, *size), rtol=1e-12, atol=1e-12)

    def test_negative_pads_cut_off(self, backend):
        fields = "pad_beg: -1 pad_end: -1 zoom_factor: 2"
        one = make_layer(self.text(fields), [X], device=backend)

        [y] = one.forward()

        np.testing.assert_allclose(y, self.loop(X[:, :, 1:-1, 1:-1], 1, 5), atol=1e-12)

    @pytest.mark.parametrize(
        "fields",
        ["height: 6 width: 7", "height: 2 width: 2", "pad_beg: -1 pad_end: 0 zoom_factor: 2"],
    )
    def test_gradients(self, fields, backend):
        expect_gradients(self.text(fields), X[:1, :2], threshold=1e-8, device=backend)

    @pytest.mark.parametrize("size", [(30, 50), (473, 60)])
    def test_corners_stay(self, size, backend):
        one = make_layer(self.text("height: {} width: {}".format(*size)), [X], device=backend)

        [y] = one.forward()

        np.testing.assert_array_equal(
            y[..., [0, 0, -1, -1], [0, -1, 0, -1]], X[..., [0, 0, -1, -1], [0, -1, 0, -1]]
        )

    @pytest.mark.parametrize(
        ("fields", "error", "code", "mentions"),
        [
            (
                "",
                ConfigError,
                ErrorCode.MISSING,
                ["interp_param.height", "zoom_factor", "shrink_factor"],
            ),
            ("height: 3", ConfigError, ErrorCode.MISSING, "interp_param.height"),
            (
                "height: 0 width: 3",
                ConfigError,
                ErrorCode.OUT_OF_RANGE,
                ["interp_param.height", "0"],
            ),
            (
                "zoom_factor: 0",
                ConfigError,
                ErrorCode.OUT_OF_RANGE,
                ["interp_param.zoom_factor", "0"],
            ),
            (
                "shrink_factor: -1",
                ConfigError,
                ErrorCode.OUT_OF_RANGE,
                ["interp_param.shrink_factor", "0"],
            ),
            (
                "zoom_factor: 2 pad_beg: 1",
                ConfigError,
                ErrorCode.OUT_OF_RANGE,
                ["interp_param.pad_beg", "0", "1"],
            ),
            (
                "zoom_factor: 2 pad_beg: -2 pad_end: -1",
                ShapeError,
                ErrorCode.SHAPE_MISMATCH,
                "Interp",
            ),
        ],
    )
    def test_refused(self, fields, error, code, mentions):
        with expect_error(error, code, mentions=mentions):
            make_layer(self.text(fields), [X])

    def test_a_bottom_without_two_spatial_axes_is_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(N, C, H, W)"):
            make_layer(self.text("zoom_factor: 2"), [X[0]])

    def test_in_place_is_refused(self):
        with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
            make_layer(self.text("zoom_factor: 2", IN_PLACE), [X])


class TestUpsample:
    MASK = np.array([RNG.choice(6 * 10, 15, replace=False) for _ in range(8)]).reshape(X.shape)

    @staticmethod
    def text(fields="", more=""):
        return f'type: "Upsample" upsample_param {{ {fields} }} {more}'

    @pytest.mark.parametrize("scale", [1, 2, 3])
    def test_pixels_become_blocks(self, scale, backend):
        one = make_layer(self.text(f"scale: {scale}"), [X], device=backend)

        [y] = one.forward()

        np.testing.assert_array_equal(y, X.repeat(scale, axis=2).repeat(scale, axis=3))

    def test_without_a_scale_nothing_changes(self, backend):
        one = make_layer(self.text(), [X[0]], device=backend)

        np.testing.assert_array_equal(one.forward()[0], X[0])

    @pytest.mark.parametrize(
        ("fields", "size"),
        [
            ("", (6, 10)),
            ("scale: 2", (6, 10)),
            ("scale_h: 3 scale_w: 4", (9, 20)),
            ("scale: 2 upsample_h: 8 upsample_w: 9", (8, 9)),
            ("scale: 4 pad_out_w: false", (12, 20)),
        ],
    )
    def test_values_go_where_the_mask_says(self, fields, size, backend):
        one = make_layer(self.text(fields), [X, self.MASK], device=backend)
        expected = np.zeros((8, size[0] * size[1]))
        for plane in range(8):
            values, places = X.reshape(8, -1)[plane], self.MASK.reshape(8, -1)[plane]
            for value, place in zip(values, places, strict=True):
                expected[plane, place] = value

        [y] = one.forward()

        np.testing.assert_array_equal(y, expected.reshape(2, 4, *size))

    @pytest.mark.parametrize("most", [1, 2 * 6 * 10, 3 * 6 * 10])
    def test_planes_are_put_back_a_few_at_a_time(self, most, backend, monkeypatch):
        whole = make_layer(self.text(), [X, self.MASK], device=backend).forward()
        monkeypatch.setattr(upsample, "AT_ONCE", most)

        parts = make_layer(self.text(), [X, self.MASK], device=backend).forward()

        np.testing.assert_array_equal(parts[0], whole[0])

    def test_one_row_or_column_less(self, backend):
        one = make_layer(
            self.text("pad_out_h: true pad_out_w: true"), [X, self.MASK % 45], device=backend
        )

        assert one.forward()[0].shape == (2, 4, 5, 9)

    def test_of_values_for_one_place_the_last_stands(self):
        one = make_layer(self.text(), [[[[[1.0, 2, 3]]]], [[[[4, 4, 0]]]]])

        np.testing.assert_array_equal(one.forward()[0], [[[[3, 0, 0, 0, 2, 0], [0] * 6]]])

    def test_undoes_a_pooling(self, backend):
        pooling = 'type: "Pooling" top: "y" top: "m" pooling_param { kernel_size: 2 stride: 2 }'
        x = RNG.uniform(1, 2, (1, 2, 4, 6))
        pooled, mask = make_layer(pooling, [x], device=backend).forward()

        [y] = make_layer(self.text(), [pooled, mask], device=backend).forward()

        np.testing.assert_array_equal(y[y != 0], x[y != 0])
        assert (y != 0).sum() == pooled.size

    @pytest.mark.parametrize("fields", ["scale: 2", "scale: 3"])
    def test_gradients(self, fields, backend):
        expect_gradients(self.text(fields), X[:1, :2], threshold=1e-8, device=backend)

    def test_gradients_with_a_mask(self, backend):
        expect_gradients(self.text(), X[:1], self.MASK[:1], threshold=1e-8, device=backend)

    @pytest.mark.parametrize(
        ("fields", "masked", "code", "field"),
        [
            ("scale_h: 2", True, ErrorCode.MISSING, "upsample_param.scale_w"),
            ("upsample_w: 2", True, ErrorCode.MISSING, "upsample_param.upsample_h"),
            ("scale: 2 scale_h: 2 scale_w: 2", True, ErrorCode.CONFLICT, "upsample_param.scale"),
            ("scale: 1", True, ErrorCode.OUT_OF_RANGE, "upsample_param.scale"),
            (
                "upsample_h: 1 upsample_w: 4",
                True,
                ErrorCode.OUT_OF_RANGE,
                "upsample_param.upsample_h",
            ),
            ("scale: 3 pad_out_h: true", True, ErrorCode.CONFLICT, "upsample_param.pad_out_h"),
            ("scale: 0", False, ErrorCode.OUT_OF_RANGE, "upsample_param.scale"),
            ("upsample_h: 4 upsample_w: 4", False, ErrorCode.CONFLICT, "upsample_param.upsample_h"),
        ],
    )
    def test_refused(self, fields, masked, code, field):
        with expect_error(ConfigError, code, field=field):
            make_layer(self.text(fields), [X, self.MASK] if masked else [X])

    def test_places_that_are_not_there_are_refused(self):
        with expect_error(
            ShapeError, ErrorCode.OUT_OF_RANGE, blob="bottom1", got=60.0, mentions="60"
        ):
            make_layer(self.text(), [X, self.MASK + 1 - self.MASK.max() + 59]).forward()

    @pytest.mark.parametrize("bottoms", [[X, X[:, :2]], [X[0], X[0]], [X[0, 0, 0]]])
    def test_other_shapes_are_refused(self, bottoms):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="Upsample"):
            make_layer(self.text(), bottoms)

    def test_in_place_is_refused(self):
        with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
            make_layer(self.text("scale: 1", IN_PLACE), [X])

    def test_a_gradient_of_the_mask_is_asked_for_in_vain(self):
        one = make_layer(self.text("scale: 2", "propagate_down: [true, true]"), [X, self.MASK])
        one.forward()

        [dx, nothing] = one.backward(np.ones_like(one.top[0].data), propagate_down=[True, True])

        assert dx.all()
        assert not nothing.any()
