"""Pooling, held against a plain loop over windows."""

from itertools import product

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import check_gradients, make_layer

RNG = np.random.default_rng(0)
LOWEST = np.finfo(np.float32).min


def text(fields, tops=1):
    names = " ".join(f'top: "y{i}"' for i in range(tops))
    return f'type: "Pooling" {names} pooling_param {{ {fields} }}'


def layer(fields, x, tops=1, **options):
    return make_layer(text(fields, tops), [x], **options)


def different(shape):
    """Values none of which are close to each other."""
    return RNG.permutation(np.prod(shape)).reshape(shape) * 0.1 - 3


def pooled(x, places, kernel, stride, pad, method):
    """Pooling by its definition: Caffe's loop over one window after the other."""
    n, c, height, width = x.shape
    y, mask = np.zeros((n, c, *places)), np.full((n, c, *places), -1.0)
    for i, j, r, s in product(range(n), range(c), *map(range, places)):
        top, left = r * stride - pad, s * stride - pad
        area = (min(top + kernel, height + pad) - top) * (min(left + kernel, width + pad) - left)
        rows = range(max(top, 0), min(top + kernel, height))
        columns = range(max(left, 0), min(left + kernel, width))
        seen = [(x[i, j, h, w], h * width + w) for h, w in product(rows, columns)]
        if method == "AVE":
            y[i, j, r, s] = sum(value for value, _ in seen) / area
        else:
            best = LOWEST
            for value, index in seen:
                if value > best:
                    best, mask[i, j, r, s] = value, index
            y[i, j, r, s] = best
    return y, mask


WINDOWS = [
    # kernel, stride, pad, round_mode, bottom's size, top's size
    (2, 2, 0, "CEIL", (4, 6), (2, 3)),
    (3, 2, 0, "CEIL", (6, 5), (3, 2)),
    (3, 2, 0, "FLOOR", (6, 5), (2, 2)),
    (3, 2, 1, "CEIL", (6, 5), (4, 3)),
    (3, 2, 1, "FLOOR", (6, 5), (3, 3)),
    (3, 1, 1, "CEIL", (4, 3), (4, 3)),
    (2, 3, 1, "CEIL", (6, 4), (3, 2)),
    (3, 2, 0, "CEIL", (2, 2), (1, 1)),
    (2, 3, 0, "CEIL", (4, 5), (2, 2)),
]


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(("kernel", "stride", "pad", "mode", "size", "places"), WINDOWS)
def test_every_window_is_summarised(method, kernel, stride, pad, mode, size, places, backend):
    x = RNG.integers(-3, 4, (2, 3, *size)).astype(float)
    fields = f"kernel_size: {kernel} stride: {stride} pad: {pad} round_mode: {mode} pool: {method}"
    one = layer(fields, x, tops=1 + (method == "MAX"), device=backend)

    y, *mask = one.forward()

    want, want_mask = pooled(x, places, kernel, stride, pad, method)
    np.testing.assert_allclose(y, want, rtol=1e-12)
    for found in mask:
        np.testing.assert_array_equal(found, want_mask)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(("kernel", "stride", "pad", "mode", "size", "places"), WINDOWS)
def test_gradients(method, kernel, stride, pad, mode, size, places, backend):
    fields = f"kernel_size: {kernel} stride: {stride} pad: {pad} round_mode: {mode} pool: {method}"

    expect_gradients(text(fields), different((2, 2, *size)), device=backend)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_height_and_width_may_differ(method, backend):
    fields = f"pool: {method} kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0"

    [y] = layer(fields, different((1, 2, 5, 4)), device=backend).forward()

    assert y.shape == (1, 2, 3, 3)
    expect_gradients(text(fields), different((1, 2, 5, 4)), device=backend)


def test_of_equal_elements_the_first_takes_the_gradient(backend):
    one = layer("kernel_size: 2", np.ones((1, 1, 2, 3)), device=backend)
    one.forward()

    [dx] = one.backward([[[[1.0, 10.0]]]])

    np.testing.assert_array_equal(dx, [[[[1, 10, 0], [0, 0, 0]]]])


def test_an_element_gets_the_gradient_of_every_window_it_wins(backend):
    one = layer("kernel_size: 2 stride: 1", [[[[1.0, 9.0, 2.0]] * 2]], device=backend)
    one.forward()

    [dx] = one.backward([[[[3.0, 4.0]]]])

    np.testing.assert_array_equal(dx, [[[[0, 7, 0], [0, 0, 0]]]])


def test_a_window_with_nothing_in_it(backend):
    x = np.arange(1.0, 6.0).reshape(1, 1, 1, 5)

    y, mask = layer("kernel_size: 1 stride: 3", x, tops=2, device=backend).forward()

    np.testing.assert_array_equal(y, [[[[1, 4, LOWEST]]]])
    np.testing.assert_array_equal(mask, [[[[0, 3, -1]]]])


def test_the_mean_of_nothing_is_no_number(backend):
    fields = "pool: AVE kernel_h: 1 kernel_w: 4 stride_h: 1 stride_w: 5"

    [y] = layer(fields, np.ones((1, 1, 1, 5)), device=backend).forward()

    np.testing.assert_array_equal(y, [[[[1.0, np.nan]]]])


def test_what_is_no_number_is_never_the_maximum(backend):
    x = np.array([[[[np.nan, 1.0, np.nan, np.nan]]]])

    y, mask = layer("kernel_h: 1 kernel_w: 2 stride: 2", x, tops=2, device=backend).forward()

    np.testing.assert_array_equal(y, [[[[1, LOWEST]]]])
    np.testing.assert_array_equal(mask, [[[[1, -1]]]])


@pytest.mark.parametrize("method", ["MAX", "STOCHASTIC"])
def test_a_window_costs_no_more_than_what_it_sees(method):
    axes = 14
    x = np.ones((1, 1, *[1] * axes))

    one = layer(f"kernel_size: 3 stride: 3 round_mode: CEIL pool: {method}", x, device="numpy")

    [y] = one.forward()
    [dx] = one.backward(np.full(y.shape, 2.0))
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(dx, 2 * x)


@pytest.mark.parametrize(("method", "reduce"), [("MAX", np.max), ("AVE", np.mean)])
def test_global_pooling_follows_the_size_of_its_bottom(method, reduce, backend):
    one = layer(f"pool: {method} global_pooling: true", different((2, 3, 4, 5)), device=backend)

    for size in [(4, 5), (2, 7)]:
        x = different((2, 3, *size))
        [y] = one.forward(x)

        np.testing.assert_allclose(y, reduce(x, axis=(2, 3), keepdims=True))
    check_gradients(text(f"pool: {method} global_pooling: true"), different((2, 2, 3, 3)))


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("shape", [(2, 2, 5), (1, 2, 4, 3, 5)])
def test_other_numbers_of_axes(method, shape, backend):
    fields = f"pool: {method} kernel_size: 2 stride: 2"

    [y] = layer(fields, different(shape), device=backend).forward()

    assert y.shape == (*shape[:2], *(-(-n // 2) for n in shape[2:]))
    expect_gradients(text(fields), different(shape), device=backend)


# -- STOCHASTIC ---------------------------------------------------------------------------------

STOCHASTIC = "pool: STOCHASTIC kernel_size: 2 stride: 2"


def test_stochastic_draws_an_element_in_proportion_to_it(backend):
    window = np.array([[1.0, 2.0], [3.0, 4.0]])
    one = layer(STOCHASTIC, np.tile(window, (1, 1, 60, 60)), device=backend)

    [y] = one.forward()

    share = [(y == value).mean() for value in (1, 2, 3, 4)]
    np.testing.assert_allclose(share, [0.1, 0.2, 0.3, 0.4], atol=0.02)


def test_stochastic_gives_its_gradient_to_the_drawn_element(backend):
    x = different((2, 3, 4, 4)) + 10
    one = layer(STOCHASTIC, x, device=backend)
    [y] = one.forward()

    [dx] = one.backward(np.ones_like(y))

    np.testing.assert_array_equal(np.sort(x[dx == 1]), np.sort(y.reshape(-1)))
    assert np.count_nonzero(dx) == y.size


def test_stochastic_draws_anew_in_every_pass_and_alike_on_every_device(backend):
    x = different((2, 3, 8, 8)) + 50
    one, other = (layer(STOCHASTIC, x, device=device) for device in (backend, "numpy"))

    first, again = one.forward()[0], one.forward()[0]
    one.layer.context.pass_counter.passes = other.layer.context.pass_counter.passes = 1
    later = one.forward()[0]

    np.testing.assert_array_equal(first, again)
    assert (later != first).any()
    np.testing.assert_array_equal(later, other.forward()[0])


def test_stochastic_on_several_ranks_draws_what_one_process_does_on_the_joined_batch():
    x = different((6, 3, 4, 4)) + 50
    [joined] = layer(STOCHASTIC, x).forward()

    for rank in range(3):
        one = layer(STOCHASTIC, x[rank::3])
        one.layer.context.rank, one.layer.context.world_size = rank, 3

        np.testing.assert_array_equal(one.forward()[0], joined[rank::3])


def test_stochastic_of_zeros_is_zero(backend):
    for phase in ("TRAIN", "TEST"):
        one = layer(STOCHASTIC, np.zeros((1, 1, 4, 4)), phase=phase, device=backend)

        assert not one.forward()[0].any()


def test_stochastic_in_test_is_the_expected_value(backend):
    x = different((2, 3, 4, 4)) + 10
    one = layer(STOCHASTIC, x, phase="TEST", device=backend)

    [y] = one.forward()

    windows = x.reshape(2, 3, 2, 2, 2, 2)
    want = (windows**2).sum(axis=(3, 5)) / windows.sum(axis=(3, 5))
    np.testing.assert_allclose(y, want)
    expect_gradients(text(STOCHASTIC), x, phase="TEST", device=backend)


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ("", ErrorCode.MISSING, "pooling_param.kernel_size"),
        ("kernel_h: 2", ErrorCode.CONFLICT, "pooling_param.kernel_size"),
        ("kernel_size: 2 kernel_h: 2 kernel_w: 2", ErrorCode.CONFLICT, "pooling_param.kernel_size"),
        ("kernel_size: 0", ErrorCode.OUT_OF_RANGE, "pooling_param.kernel_size"),
        ("kernel_size: 2 stride: 0", ErrorCode.OUT_OF_RANGE, "pooling_param.stride"),
        ("kernel_size: 2 stride_h: 2", ErrorCode.CONFLICT, "pooling_param.stride"),
        (
            "kernel_size: 2 stride: 1 stride_h: 2 stride_w: 2",
            ErrorCode.CONFLICT,
            "pooling_param.stride",
        ),
        ("kernel_size: 3 pad_h: 1", ErrorCode.CONFLICT, "pooling_param.pad"),
        ("kernel_size: 3 pad: 1 pad_h: 1 pad_w: 1", ErrorCode.CONFLICT, "pooling_param.pad"),
        ("kernel_size: 2 pad: 2", ErrorCode.OUT_OF_RANGE, "pooling_param.pad"),
        ("kernel_h: 3 kernel_w: 1 pad: 1", ErrorCode.OUT_OF_RANGE, "pooling_param.pad"),
        ("global_pooling: true kernel_size: 2", ErrorCode.CONFLICT, "pooling_param.global_pooling"),
        ("global_pooling: true pad: 1", ErrorCode.CONFLICT, "pooling_param.global_pooling"),
        ("global_pooling: true stride: 2", ErrorCode.CONFLICT, "pooling_param.global_pooling"),
        ("pool: STOCHASTIC kernel_size: 2 pad: 1", ErrorCode.CONFLICT, "pooling_param.pad"),
    ],
)
def test_windows_that_cannot_be_are_refused(fields, code, field):
    with expect_error(ConfigError, code, field=field):
        layer(fields, np.zeros((1, 1, 4, 4)))


def test_kernel_size_wins_over_one_side():
    one = layer("kernel_size: 2 kernel_h: 3 stride: 2", np.zeros((1, 1, 4, 4)))

    assert one.top[0].shape == (1, 1, 2, 2)


def test_sides_need_two_axes():
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="pooling_param.kernel_h"):
        layer("kernel_h: 2 kernel_w: 2", np.zeros((1, 1, 4, 4, 4)))


@pytest.mark.parametrize("method", ["AVE", "STOCHASTIC"])
def test_only_max_has_a_mask(method):
    with expect_error(NetError, ErrorCode.CONFLICT, field="pooling_param.pool"):
        layer(f"pool: {method} kernel_size: 2", np.zeros((1, 1, 4, 4)), tops=2)


def test_a_bottom_without_spatial_axes_is_refused():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="Pooling"):
        layer("kernel_size: 2", np.zeros((3, 4)))


def test_a_window_larger_than_the_image_by_a_stride_is_refused():
    with expect_error(ShapeError, mentions=["(5, 5)", "(4, 4)"]):
        layer("kernel_size: 5", np.zeros((1, 1, 4, 4)))


def test_in_place_there_is_no_gradient():
    one = make_layer(
        'type: "Pooling" bottom: "x" top: "x" pooling_param { kernel_size: 1 }',
        [np.ones((1, 1, 2, 2))],
    )
    one.forward()

    with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
        one.backward()
