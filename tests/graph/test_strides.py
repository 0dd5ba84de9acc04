"""Strides that move up to what computes pixels that nobody reads."""

import pytest

from demitasse.graph import move_strides
from demitasse.io.proto import NetParameter, parse_text

POINTWISE = "num_output: 4 kernel_size: 1"
HALF = f"{POINTWISE} stride: 2"
WIDE = "num_output: 4 kernel_size: 3 pad: 1"


def conv(top, bottom, fields):
    return layer("Convolution", top, bottom, f"convolution_param {{ {fields} }}")


def layer(kind, top, bottoms, fields=""):
    below = " ".join(f'bottom: "{blob}"' for blob in bottoms.split())
    return f'layer {{ name: "{kind} {top}" type: "{kind}" {below} top: "{top}" {fields} }}\n'


INPUT = 'layer { name: "in" type: "Input" top: "x" }\n'
BLOCK = (
    INPUT
    + conv("a", "x", POINTWISE)
    + conv("b", "a", WIDE)
    + layer("ReLU", "b", "b")
    + conv("c", "b", POINTWISE)
    + layer("Eltwise", "sum", "x c")
    + layer("ReLU", "sum", "sum")
)
"""The last block of a stage: what is before it is read at every pixel."""


def moved(text, kept=()):
    """Return the stride of each convolution by its top, and the names of what was put in."""
    net, origin = move_strides(parse_text(text, NetParameter), kept)
    strides = {
        one.top[0]: (list(one.convolution_param.stride) or [1])[0]
        for one in net.layer
        if one.type == "Convolution"
    }
    return strides, [one.name for one, place in zip(net.layer, origin, strict=True) if place < 0]


def test_the_convolution_before_takes_the_stride():
    text = INPUT + conv("a", "x", WIDE) + layer("PReLU", "p", "a") + conv("b", "p", HALF)

    assert moved(text) == ({"a": 2, "b": 1}, [])


def test_strides_are_multiplied():
    text = INPUT + conv("a", "x", f"{WIDE} stride: 3") + conv("b", "a", HALF)

    assert moved(text) == ({"a": 6, "b": 1}, [])


def test_a_residual_block_is_computed_where_it_is_read():
    text = BLOCK + conv("d", "sum", HALF) + conv("e", "sum", HALF)

    assert moved(text) == (
        {"a": 1, "b": 2, "c": 1, "d": 1, "e": 1},
        ["x_Eltwise sum_0_thinned"],
    )


def test_what_is_thinned_is_what_a_branch_was():
    text = BLOCK + conv("d", "sum", HALF)

    net, origin = move_strides(parse_text(text, NetParameter), ())

    place = origin.index(-1)
    thinning, total = net.layer[place], net.layer[place + 1]
    assert list(thinning.bottom) == ["x"]
    assert list(total.bottom) == [thinning.top[0], "c"]
    assert [one for one in origin if one >= 0] == list(range(8))


@pytest.mark.parametrize(
    "reader",
    [
        conv("e", "sum", POINTWISE),
        conv("e", "sum", f"{POINTWISE} stride: 3"),
        conv("e", "sum", f"{WIDE} stride: 2"),
        conv("e", "sum", f"{HALF} pad: 1"),
        conv("e", "sum", f"{POINTWISE} stride_h: 2 stride_w: 1"),
        conv("e", "sum", f"{HALF} axis: 2"),
        layer("Crop", "e", "x sum"),
    ],
)
def test_another_reader_has_all_pixels_computed(reader):
    text = BLOCK + conv("d", "sum", HALF) + reader

    strides, put_in = moved(text)

    assert (strides["b"], strides["d"], put_in) == (1, 2, [])


@pytest.mark.parametrize(
    ("between", "moves"),
    [
        (layer("Dropout", "a", "a"), True),
        (layer("BatchNorm", "a", "a"), True),
        (layer("BatchNorm", "a", "a", "batch_norm_param { use_global_stats: false }"), False),
        (layer("Scale", "a", "a", "scale_param { bias_term: true }"), True),
        (layer("Scale", "a", "a", "scale_param { num_axes: -1 }"), False),
        (layer("Scale", "a", "a x"), False),
        (layer("LRN", "a", "a"), False),
        (layer("Softmax", "a", "a"), False),
    ],
)
def test_what_may_be_between(between, moves):
    strides, _ = moved(INPUT + conv("a", "x", WIDE) + between + conv("b", "a", HALF))

    assert strides == ({"a": 2, "b": 1} if moves else {"a": 1, "b": 2})


@pytest.mark.parametrize(
    "fields", [f"{WIDE} stride_h: 1 stride_w: 2", f"{WIDE} axis: 2"], ids=["two strides", "axis"]
)
def test_some_convolutions_take_no_stride(fields):
    net = parse_text(INPUT + conv("a", "x", fields) + conv("b", "a", HALF), NetParameter)

    assert move_strides(net, ())[0] == net


def test_where_no_convolution_gains_nothing_moves():
    pool = layer("Pooling", "a", "x", "pooling_param { kernel_size: 3 }")
    net = parse_text(INPUT + pool + conv("b", "a", HALF), NetParameter)

    assert move_strides(net, ()) == (net, [0, 1, 2])


@pytest.mark.parametrize("kept", ["sum", "nobody's"])
def test_what_is_kept_is_computed(kept):
    text = BLOCK + conv("d", "sum", HALF)

    strides, put_in = moved(text, [kept])

    assert (strides["b"], strides["d"], put_in) == (1, 2, [])


def test_a_loss_is_of_all_pixels():
    weight = "loss_weight: 1"
    text = INPUT + conv("a", "x", WIDE) + layer("ReLU", "p", "a", weight) + conv("b", "p", HALF)

    assert moved(text) == ({"a": 1, "b": 2}, [])


def test_a_sum_in_place_of_all_pixels_stays_whole():
    text = INPUT + layer("Pooling", "p", "x", "pooling_param { kernel_size: 1 }")
    text += conv("a", "x", WIDE) + layer("Eltwise", "p", "p a") + conv("b", "p", HALF)

    assert moved(text) == ({"a": 1, "b": 2}, [])
    other = text.replace(layer("Eltwise", "p", "p a"), layer("Eltwise", "a", "a p"))
    other = other.replace(conv("b", "p", HALF), conv("b", "a", HALF))
    assert moved(other) == ({"a": 2, "b": 1}, ["p_Eltwise a_1_thinned"])


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_statistics_of_a_layer_of_phase_train_are_of_all_pixels(phase):
    text = INPUT + conv("a", "x", WIDE) + layer("BatchNorm", "n", "a", f"phase: {phase}")

    assert moved(text + conv("b", "n", HALF))[0]["a"] == {"TRAIN": 1, "TEST": 2}[phase]
