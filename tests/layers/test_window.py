"""Geometry of windows, held against a count of the places themselves."""

import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st

from demitasse.backends.windows import Window
from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.proto import ConvolutionParameter, parse_text
from demitasse.layers.windows import convolution_window


def window(kernel, stride=1, pad=0, dilation=1):
    return Window((kernel,), (stride,), (pad,), (dilation,))


@given(*[st.integers(1, 9)] * 3, st.integers(0, 3), st.integers(1, 3))
def test_a_convolution_has_every_place_where_its_window_fits(size, kernel, stride, pad, dilation):
    one = window(kernel, stride, pad, dilation)
    starts = range(-pad, size + pad - one.extent[0] + 1, stride)

    if starts:
        assert one.convolved((size,)) == (len(starts),)


@given(*[st.integers(1, 9)] * 3, st.integers(0, 3), st.integers(1, 3))
def test_a_transposed_convolution_covers_what_a_convolution_came_from(
    places, kernel, stride, pad, dilation
):
    one = window(kernel, stride, pad, dilation)

    try:
        size = one.deconvolved((places,))
    except ShapeError:
        return

    assert one.convolved(size) == (places,)


@given(*[st.integers(1, 12)] * 3, st.integers(0, 3))
def test_pooling_covers_the_image_and_no_window_starts_behind_it(size, kernel, stride, pad):
    pad = min(pad, kernel - 1)
    one = window(kernel, stride, pad)
    starts = range(-pad, size + pad, stride)

    try:
        [count] = one.pooled((size,), ceil=True)
    except ShapeError:
        return

    last = starts[count - 1] if count <= len(starts) else None
    if pad:
        assert last is not None
        assert last < size
    if kernel >= stride and pad == 0:
        assert last + kernel >= size


@given(*[st.integers(1, 9)] * 4, st.integers(0, 4), st.integers(1, 3))
def test_taps_that_see_only_what_is_around_an_image_are_known(
    size, places, kernel, stride, pad, dilation
):
    one = window(kernel, stride, pad, dilation)

    seen = {
        (tap,)
        for tap in range(kernel)
        for place in range(places)
        if 0 <= place * stride - pad + tap * dilation < size
    }
    assert one.taps_on((size,), (places,)) == sorted(seen)
    outer = min(min(seen)[0], kernel - 1 - max(seen)[0], pad // dilation) if seen else 0
    cropped = one.cropped((size,), (places,))
    assert (cropped.kernel, cropped.pad) == ((kernel - 2 * outer,), (pad - outer * dilation,))


def test_a_large_window_on_a_small_image_has_few_taps():
    one = Window((3,) * 20, (1,) * 20, (1,) * 20, (1,) * 20)

    assert one.taps_on((1,) * 20, (1,) * 20) == [(1,) * 20]


# size, kernel, stride, pad, ceil -> places; as Caffe computes them
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad", "ceil", "floor"),
    [
        (55, 3, 2, 0, 27, 27),
        (27, 3, 2, 0, 13, 13),
        (112, 3, 2, 0, 56, 55),
        (56, 3, 2, 0, 28, 27),
        (112, 3, 2, 1, 57, 56),
        (28, 3, 1, 1, 28, 28),
        (6, 2, 4, 1, 2, 2),
        (3, 2, 2, 1, 2, 2),
        (5, 1, 3, 0, 3, 2),
        (2, 3, 2, 0, 1, None),
        (2, 5, 3, 0, 0, None),
    ],
)
def test_pooling_rounds_up_or_down(size, kernel, stride, pad, ceil, floor):
    one = window(kernel, stride, pad)

    for up, want in ((True, ceil), (False, floor)):
        if want:
            assert one.pooled((size,), ceil=up) == (want,)
        else:
            with pytest.raises(ShapeError):
                one.pooled((size,), ceil=up)


def test_pads_on_one_axis_clip_the_other_too():
    one = Window((1, 3), (3, 1), (0, 1), (1, 1))

    assert one.pooled((5, 4), ceil=True) == (2, 4)


def test_a_window_that_sticks_out_by_less_than_a_stride_has_one_place():
    assert window(4, stride=2).convolved((3,)) == (1,)


@pytest.mark.parametrize("kernel", [4, 5])
def test_a_window_larger_than_the_image_is_refused(kernel):
    with expect_error(ShapeError, mentions=[f"({kernel},)", "(3,)"]):
        window(kernel).convolved((3,))


def test_a_transposed_convolution_that_is_all_pad_is_refused():
    with expect_error(ShapeError, mentions="0"):
        window(1, pad=2).deconvolved((3,))


def read(fields, axes=2):
    return convolution_window(parse_text(fields, ConvolutionParameter), axes)


@pytest.mark.parametrize(
    ("fields", "axes", "want"),
    [
        ("kernel_size: 3", 2, Window((3, 3), (1, 1), (0, 0), (1, 1))),
        (
            "kernel_size: 3 stride: 2 pad: 1 dilation: 4",
            3,
            Window((3,) * 3, (2,) * 3, (1,) * 3, (4,) * 3),
        ),
        (
            "kernel_size: 3 kernel_size: 5 stride: 1 stride: 2 pad: 0 pad: 1 dilation: 1",
            2,
            Window((3, 5), (1, 2), (0, 1), (1, 1)),
        ),
        (
            "kernel_h: 3 kernel_w: 5 stride_h: 1 stride_w: 2 pad_w: 1",
            2,
            Window((3, 5), (1, 2), (0, 1), (1, 1)),
        ),
        ("kernel_size: 3", 0, Window((), (), (), ())),
    ],
)
def test_fields_are_read_in_every_form(fields, axes, want):
    assert read(fields, axes) == want


@pytest.mark.parametrize(
    ("fields", "axes", "code", "field"),
    [
        ("", 2, ErrorCode.COUNT_MISMATCH, "convolution_param.kernel_size"),
        (
            "kernel_size: 3 kernel_size: 3",
            3,
            ErrorCode.COUNT_MISMATCH,
            "convolution_param.kernel_size",
        ),
        ("kernel_size: 0", 2, ErrorCode.OUT_OF_RANGE, "convolution_param.kernel_size"),
        ("kernel_h: 3", 2, ErrorCode.OUT_OF_RANGE, "convolution_param.kernel_size"),
        ("kernel_h: 3 kernel_w: 3", 3, ErrorCode.CONFLICT, "convolution_param.kernel_h"),
        ("kernel_h: 3 kernel_w: 3", 1, ErrorCode.CONFLICT, "convolution_param.kernel_h"),
        (
            "kernel_size: 3 kernel_h: 3 kernel_w: 3",
            2,
            ErrorCode.CONFLICT,
            "convolution_param.kernel_size",
        ),
        ("kernel_size: 3 stride: 0", 2, ErrorCode.OUT_OF_RANGE, "convolution_param.stride"),
        ("kernel_size: 3 stride_h: 2", 2, ErrorCode.OUT_OF_RANGE, "convolution_param.stride"),
        (
            "kernel_size: 3 stride: 1 stride_h: 2 stride_w: 2",
            2,
            ErrorCode.CONFLICT,
            "convolution_param.stride",
        ),
        (
            "kernel_size: 3 stride: 1 stride: 1 stride: 1",
            2,
            ErrorCode.COUNT_MISMATCH,
            "convolution_param.stride",
        ),
        ("kernel_size: 3 pad: 1 pad_h: 2", 2, ErrorCode.CONFLICT, "convolution_param.pad"),
        ("kernel_size: 3 pad_h: 2", 3, ErrorCode.CONFLICT, "convolution_param.pad_h"),
        (
            "kernel_size: 3 pad_shape { dim: -1 }",
            2,
            ErrorCode.OUT_OF_RANGE,
            "convolution_param.pad",
        ),
        (
            "kernel_size: 3 dilation: 1 dilation: 1",
            3,
            ErrorCode.COUNT_MISMATCH,
            "convolution_param.dilation",
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, axes, code, field):
    with expect_error(ConfigError, code, field=field):
        read(fields, axes)
