"""Layers with a geometry, held against plain loops over random parameters, refusals included.

The shapes a net announces are those its forward pass gives; data and gradients are the loop's, on
every backend, with and without its faster ways.
"""

import numpy as np
import plain_loops
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from plain_loops import RefusedError

from demitasse import Net
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.io.proto import NetParameter, parse_text

# `backend` is a string, the same for all examples
on_backend = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
plans = st.booleans()
seeds = st.integers(0, 2**32 - 1)


def mostly(good, bad):
    """Values of which one of eight should be refused."""
    return st.integers(0, 7).flatmap(lambda chance: good if chance else bad)


class Case:
    """One layer after inputs, in a net.

    Args:
        kind: Its type.
        fields: Its parameter message, in text.
        inputs: Values of its bottoms, by name.
        params: Values of its parameters.
        tops: How many it has.
    """

    def __init__(self, kind, fields, inputs, params=(), tops=1):
        names = [f"y{i}" for i in range(tops)]
        lines = ["force_backward: true"]
        for name, value in inputs.items():
            dims = " ".join(f"dim: {n}" for n in value.shape)
            lines.append(
                f'layer {{ name: "{name}" type: "Input" top: "{name}" '
                f"input_param {{ shape {{ {dims} }} }} }}"
            )
        bottoms = " ".join(f'bottom: "{name}"' for name in inputs)
        above = " ".join(f'top: "{name}"' for name in names)
        lines.append(f'layer {{ name: "layer" type: "{kind}" {bottoms} {above} {fields} }}')
        self.text, self.inputs, self.params, self.names = "\n".join(lines), inputs, params, names

    def run(self, backend, plan):
        """Make the net and run it forward; its shapes must be those it announced.

        Returns:
            The net, and its tops.
        """
        net = Net(parse_text(self.text, NetParameter), "TRAIN", device=backend, optimize=plan)
        announced = [net.blobs[name].shape for name in self.names]
        for name, value in self.inputs.items():
            net.blobs[name].data[...] = value
        for blob, value in zip(net.params.get("layer", []), self.params, strict=True):
            assert blob.shape == value.shape
            blob.data[...] = value
        net.forward()
        tops = [np.array(net.blobs[name].data) for name in self.names]
        assert [top.shape for top in tops] == announced
        return net, tops

    def refused(self, backend, plan):
        event("refused")
        with pytest.raises((ConfigError, NetError, ShapeError)):
            self.run(backend, plan)


def backward(net, *top_diffs):
    """Return the gradients of the first input and of the parameters."""
    for name, value in zip(net.outputs, top_diffs, strict=True):
        net.blobs[name].diff[...] = value
    net.clear_param_diffs()
    net.backward()
    grads = [np.array(blob.diff) for blob in net.params.get("layer", [])]
    return [np.array(net.blobs[net.inputs[0]].diff), *grads]


def same_both_ways(case, backend, plan, want, loop_backward):
    """The layer's one top and the gradient of its first bottom are those of the loop."""
    net, [y] = case.run(backend, plan)
    dy = np.random.default_rng(1).normal(size=want.shape)
    [dx] = backward(net, dy)

    close(y, want)
    close(dx, loop_backward(dy))


def close(got, want):
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    scale = max(1e-3, np.abs(np.nan_to_num(want)).max(initial=0))
    assert np.abs(np.nan_to_num(got) - np.nan_to_num(want)).max(initial=0) <= 2e-5 * scale


SIDES = ("pad_t", "pad_l"), ("pad_b", "pad_r")


def pads_of_sides(window):
    """Return the fields of four different pads."""
    pairs = zip(window, *SIDES, strict=True)
    return [f"{low}: {w['pad']} {high}: {w['after']}" for w, low, high in pairs]


def text_of(window, axes, draw):
    """Return the fields of a window: by axis, or for height and width, or once for all."""
    fields = []
    for plural, name in (
        ("kernel_size", "kernel"),
        ("stride", "stride"),
        ("pad", "pad"),
        ("dilation", "dilation"),
    ):
        values = [one[name] for one in window]
        if name == "pad" and "after" in window[0]:
            fields += pads_of_sides(window)
        elif name != "dilation" and not draw(st.integers(0, 3)):
            fields.append(f"{name}_shape {{ {' '.join(f'dim: {n}' for n in values)} }}")
        elif axes == 2 and draw(st.booleans()):
            fields.append(f"{name}_h: {values[0]} {name}_w: {values[1]}")
        elif len(set(values)) == 1 and draw(st.booleans()):
            fields.append(f"{plural}: {values[0]}")
        else:
            fields += [f"{plural}: {value}" for value in values]
    return " ".join(fields)


@st.composite
def convolutions(draw, map_is_bottom):
    """Draw (fields, x, weight, bias, window, group) of a convolution or its transpose."""
    axes = draw(st.integers(1, 3))
    most = {1: 9, 2: 7, 3: 4}[axes]
    window = [
        {
            "kernel": draw(st.integers(1, 4)),
            "stride": draw(st.integers(1, 3)),
            "pad": draw(st.integers(0, 3)),
            "dilation": draw(st.integers(1, 3)),
        }
        for _ in range(axes)
    ]
    if axes == 2 and draw(st.booleans()):
        for one in window:
            one["after"] = draw(st.integers(0, 3))
    n, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    channels, maps = group * draw(st.integers(1, 3)), group * draw(st.integers(1, 3))
    spatial = [draw(st.integers(1, most)) for _ in range(axes)]
    rng = np.random.default_rng(draw(seeds))
    x = rng.normal(size=(n, maps if map_is_bottom else channels, *spatial))
    weight = rng.normal(size=(maps, channels // group, *(one["kernel"] for one in window)))
    outputs = channels if map_is_bottom else maps
    has_bias = draw(st.booleans())
    bias = rng.normal(size=outputs) if has_bias else np.zeros(outputs)
    fields = (
        f"convolution_param {{ num_output: {outputs} group: {group} "
        f"bias_term: {str(has_bias).lower()} {text_of(window, axes, draw)} "
        f"axis: {draw(st.sampled_from([1, -1 - axes]))} "
        f"force_nd_im2col: {str(draw(st.booleans())).lower()} }}"
    )
    return fields, x, weight, bias, window, group, has_bias


def check_convolution(kind, loop, drawn, backend, plan):
    fields, x, weight, bias, window, group, has_bias = drawn
    case = Case(kind, fields, {"x": x}, [weight, bias][: 1 + has_bias])
    try:
        want, loop_backward = loop(x, weight, bias, window, group)
    except RefusedError:
        case.refused(backend, plan)
        return

    net, [y] = case.run(backend, plan)
    dy = np.random.default_rng(1).normal(size=want.shape)
    grads = backward(net, dy)

    close(y, want)
    for got, expected in zip(grads, loop_backward(dy), strict=False):
        close(got, expected)


@on_backend
@given(convolutions(map_is_bottom=False), plans)
def test_convolution_is_a_plain_loop(backend, drawn, plan):
    check_convolution("Convolution", plain_loops.convolution, drawn, backend, plan)


@on_backend
@given(convolutions(map_is_bottom=True), plans)
def test_deconvolution_is_a_plain_loop(backend, drawn, plan):
    check_convolution("Deconvolution", plain_loops.deconvolution, drawn, backend, plan)


@st.composite
def poolings(draw):
    """Draw (fields, x, window, ceil); values are few, so that there are ties."""
    axes = draw(st.integers(1, 3))
    most = {1: 12, 2: 9, 3: 5}[axes]
    square = draw(st.booleans())
    sides = [
        {
            "kernel": draw(st.integers(1, 5)),
            "stride": draw(st.integers(1, 4)),
        }
        for _ in range(1 if square else axes)
    ]
    for one in sides:  # a pad as large as the kernel is refused
        one["pad"] = draw(mostly(st.integers(0, one["kernel"] - 1), st.just(one["kernel"])))
        if axes == 2 and not square and draw(st.booleans()):
            one["after"] = draw(st.integers(0, one["kernel"] - 1))
    window = sides * axes if square else sides
    spatial = [draw(st.integers(1, most)) for _ in range(axes)]
    whole = draw(st.integers(0, 9)) == 0
    if square:
        fields = "kernel_size: {kernel} stride: {stride} pad: {pad}".format(**sides[0])
    else:
        fields = pool_fields(window, axes, draw)
    if whole:
        fields = "global_pooling: true"
        window = [{"kernel": n, "stride": 1, "pad": 0} for n in spatial]
    ceil = draw(st.booleans())
    fields += "" if ceil and draw(st.booleans()) else f" round_mode: {'CEIL' if ceil else 'FLOOR'}"
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), *spatial)
    x = np.random.default_rng(draw(seeds)).integers(-2, 3, shape).astype(float)
    return fields, x, window, ceil


def pool_fields(window, axes, draw):
    """Return the fields of a window whose axes differ, in the way of some fork."""
    way = draw(st.sampled_from(["hw", "repeated", "list", "3d", "shape", "depth"]))
    if any("after" in one for one in window):
        for one in window:
            one.setdefault("after", one["pad"])
    fields = []
    for name, depth in (("kernel", "kernel_depth"), ("stride", "temporal_stride"),
                        ("pad", "temporal_pad")):  # fmt: skip
        values, plain = [one[name] for one in window], "kernel_size" if name == "kernel" else name
        if name == "pad" and "after" in window[0]:
            fields += pads_of_sides(window)
        elif way == "hw" and axes == 2:
            fields.append(f"{name}_h: {values[0]} {name}_w: {values[1]}")
        elif way == "depth" and axes == 3:
            fields.append(f"{depth}: {values[0]} {name}_h: {values[1]} {name}_w: {values[2]}")
        elif way == "shape":
            fields.append(f"{name}_shape {{ {' '.join(f'dim: {n}' for n in values)} }}")
        elif way == "3d":
            fields += [f"{plain}_3d: {n}" for n in values]
        elif way == "list":
            fields.append(f"{plain}: {values}")
        else:
            fields += [f"{plain}: {n}" for n in values]
    return " ".join(fields)


def padding_fits(window):
    """Pads must be below the kernel, once there is one."""
    pads = [(plain_loops.pads(w), w["kernel"]) for w in window]
    return not any(map(any, (pad for pad, _ in pads))) or all(max(p) < k for p, k in pads)


@on_backend
@given(poolings(), st.booleans(), plans)
def test_max_pooling_is_a_plain_loop(backend, drawn, with_mask, plan):
    fields, x, window, ceil = drawn
    tops = 1 + with_mask
    case = Case("Pooling", f"pooling_param {{ pool: MAX {fields} }}", {"x": x}, tops=tops)
    try:
        if not padding_fits(window):
            raise RefusedError(window)
        want, mask, loop_backward = plain_loops.max_pooling(x, window, ceil)
    except RefusedError:
        case.refused(backend, plan)
        return

    net, [y, *rest] = case.run(backend, plan)
    dy = np.random.default_rng(1).normal(size=want.shape)
    [dx] = backward(net, *[dy] * tops)

    np.testing.assert_array_equal(y, want.astype(np.float32))
    for got in rest:
        np.testing.assert_array_equal(got, mask)
    close(dx, loop_backward(dy))


def beyond(axes, stride, spatial=2):
    """One last window that begins ``stride - spatial`` elements behind the image on each axis."""
    window = [{"kernel": 1, "stride": stride, "pad": 0}] * axes
    fields = f"kernel_size: 1 stride: {stride}"
    x = np.arange(1.0, 1 + spatial**axes).reshape(1, 1, *(spatial,) * axes)
    return fields, x, window, True


@pytest.mark.parametrize("plan", [False, True])
@pytest.mark.parametrize("stride", [2, 3, 4, 1000])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_mean_of_nothing_is_caffes_quotient(backend, axes, stride, plan):
    fields, x, window, ceil = beyond(axes, stride)
    case = Case("Pooling", f"pooling_param {{ pool: AVE {fields} }}", {"x": x})
    want, loop_backward = plain_loops.average_pooling(x, window, ceil)

    net, [y] = case.run(backend, plan)
    dy = np.random.default_rng(1).normal(size=want.shape)
    [dx] = backward(net, dy)

    np.testing.assert_array_equal(y, want)  # NaN where it begins at the end, 0 where beyond
    np.testing.assert_array_equal(np.signbit(y[~np.isnan(y)]), np.signbit(want[~np.isnan(want)]))
    close(dx, loop_backward(dy))


MEANS = {
    "pool: AVE": True,
    "pool: AVE_EXC_PAD": False,
    "pool: AVE avg_include_pad: false": False,
}


@on_backend
@given(poolings(), st.sampled_from([*MEANS]), plans)
@example(beyond(1, 3), "pool: AVE", False)
@example(beyond(2, 3), "pool: AVE", False)
@example(beyond(3, 3), "pool: AVE", False)
def test_average_pooling_is_a_plain_loop(backend, drawn, mean, plan):
    fields, x, window, ceil = drawn
    case = Case("Pooling", f"pooling_param {{ {mean} {fields} }}", {"x": x})
    try:
        if not padding_fits(window):
            raise RefusedError(window)
        want, loop_backward = plain_loops.average_pooling(x, window, ceil, MEANS[mean])
    except RefusedError:
        case.refused(backend, plan)
        return

    same_both_ways(case, backend, plan, want, loop_backward)


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@on_backend
@given(shapes, st.data(), plans)
def test_crop_is_a_plain_loop(backend, shape, data, plan):
    x, axes = np.random.default_rng(len(shape)).normal(size=shape), len(shape)
    axis = data.draw(mostly(st.integers(-axes, axes - 1), st.sampled_from([-axes - 1, axes])))
    like = np.zeros([data.draw(st.integers(1, n)) for n in shape])
    room = [n - m for n, m in zip(shape, like.shape, strict=True)][axis % axes :]
    each = st.tuples(*(st.integers(0, n) for n in room)).map(list)
    once = st.lists(st.integers(0, min(room)), max_size=1)
    offsets = data.draw(mostly(each | once, st.lists(st.integers(0, 2), max_size=4)))
    fields = f"crop_param {{ axis: {axis} {' '.join(f'offset: {n}' for n in offsets)} }}"
    case = Case("Crop", fields, {"x": x, "like": like})
    try:
        want, loop_backward = plain_loops.crop(x, like, axis, offsets)
    except RefusedError:
        case.refused(backend, plan)
        return

    same_both_ways(case, backend, plan, want, loop_backward)


@on_backend
@given(shapes, st.data(), plans)
def test_slice_is_a_plain_loop(backend, shape, data, plan):
    x, axes = np.random.default_rng(len(shape)).normal(size=shape), len(shape)
    axis = data.draw(mostly(st.integers(-axes, axes - 1), st.sampled_from([-axes - 1, axes])))
    tops = data.draw(st.integers(1, shape[axis % axes]))
    cuts = st.permutations(range(1, shape[axis % axes])).map(lambda cuts: sorted(cuts[: tops - 1]))
    points = data.draw(cuts | mostly(st.just([]), st.lists(st.integers(1, 4), max_size=3)))
    fields = f"slice_param {{ axis: {axis} {' '.join(f'slice_point: {n}' for n in points)} }}"
    case = Case("Slice", fields, {"x": x}, tops=tops)
    try:
        want = plain_loops.slices(x, axis, points, tops)
    except RefusedError:
        case.refused(backend, plan)
        return

    net, parts = case.run(backend, plan)
    diffs = [np.random.default_rng(i).normal(size=part.shape) for i, part in enumerate(want)]
    [dx] = backward(net, *diffs)

    for got, expected in zip(parts, want, strict=True):
        close(got, expected)
    close(dx, np.concatenate(diffs, axis=axis))


@st.composite
def other_shapes(draw, sizes):
    """Draw other axes for as many elements, with ones, zeros that keep an axis, and a -1."""
    dims = list(draw(st.permutations(sizes)))
    for place in range(len(dims)):
        if dims[place] == sizes[place] and draw(st.booleans()):
            dims[place] = 0
    if draw(st.booleans()):
        dims.append(1)
    if dims and draw(st.booleans()):
        dims[draw(st.integers(0, len(dims) - 1))] = -1
    return dims


@on_backend
@given(shapes, st.data(), plans)
def test_reshape_is_a_plain_loop(backend, shape, data, plan):
    x = np.random.default_rng(len(shape)).normal(size=shape)
    axes = len(shape)
    axis = data.draw(mostly(st.integers(-axes - 1, axes), st.sampled_from([-axes - 2, axes + 1])))
    start = axis % (axes + 1)
    num_axes = data.draw(mostly(st.integers(-1, axes - start), st.sampled_from([-2, axes + 1])))
    replaced = shape[start:] if num_axes < 0 else shape[start : start + num_axes]
    some = st.sampled_from([-1, 0, 0, 1, 2, 4, *shape])
    dims = data.draw(mostly(other_shapes(replaced), st.lists(some, max_size=4)))
    fields = (
        f"reshape_param {{ axis: {axis} num_axes: {num_axes} "
        f"shape {{ {' '.join(f'dim: {n}' for n in dims)} }} }}"
    )
    case = Case("Reshape", fields, {"x": x})
    try:
        want = plain_loops.reshaped(tuple(shape), list(dims), axis, num_axes)
    except RefusedError:
        case.refused(backend, plan)
        return

    net, [y] = case.run(backend, plan)
    dy = np.random.default_rng(1).normal(size=want)
    [dx] = backward(net, dy)

    close(y, x.reshape(want))
    close(dx, dy.reshape(shape))
