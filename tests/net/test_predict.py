"""Predicting in batches: what is cut, what is joined, and what cannot be told."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, parse_text

INPUT = 'layer {{ name: "{0}" type: "Input" top: "{0}" input_param {{ shape {{ {1} }} }} }}'


def net_of(layers, device="numpy", phase="TEST", **inputs):
    """Return a net with inputs of some shapes."""
    dims = {name: " ".join(f"dim: {d}" for d in shape) for name, shape in inputs.items()}
    text = "".join(INPUT.format(name, shape) for name, shape in dims.items()) + layers
    return Net(parse_text(text, NetParameter), phase, device=device, seed=1)


def items(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


POWER = 'layer { name: "p" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }'
SCALED = """layer { name: "scale" type: "Scale" bottom: "x" bottom: "info" top: "y"
    scale_param { axis: 1 } }"""
PRIORS = (
    POWER
    + """layer { name: "prior" type: "PriorBox" bottom: "x" bottom: "x" top: "boxes"
    prior_box_param { min_size: 3 } }"""
)
RESHAPED = """layer {{ name: "r" type: "Reshape" bottom: "x" top: "y"
    reshape_param {{ shape {{ {} }} }} }}"""
ONE_MORE = """layer { name: "d" type: "DummyData" top: "d"
    dummy_data_param { shape { dim: 1 dim: 3 } } }
    layer { name: "c" type: "Concat" bottom: "x" bottom: "d" top: "y" concat_param { axis: 0 } }"""
COUNTED = POWER + 'layer { name: "sum" type: "Reduction" bottom: "x" top: "sum" }'


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 6, 9])
def test_batches_of_any_size_give_what_all_at_once_gives(backend, batch):
    net = net_of(POWER, backend, x=(4, 3))
    x = items(6, 3)

    for _ in range(2):
        np.testing.assert_array_equal(net.predict(x, batch_size=batch)["y"], 2 * x)


def test_an_input_of_another_length_goes_into_every_batch(backend):
    net = net_of(SCALED, backend, x=(1, 3), info=(3,))
    x, info = items(5, 3), items(3)

    found = net.predict({"x": x, "info": info}, batch_size=2)

    np.testing.assert_allclose(found["y"], x * info, rtol=1e-6)


@pytest.mark.parametrize("count", [4, 5])
def test_an_output_without_a_batch_axis_comes_once(backend, count):
    net = net_of(PRIORS, backend, x=(1, 3, 4, 4))
    x = items(count, 3, 4, 4)

    found = net.predict(x, batch_size=2)

    assert found["y"].shape == x.shape
    assert found["boxes"].shape == (1, 2, 64)
    np.testing.assert_array_equal(found["boxes"], net.predict(x)["boxes"])


def test_an_output_that_each_batch_changes_and_none_grows_is_refused(backend):
    net = net_of(COUNTED, backend, x=(1, 3))

    assert net.predict(items(2, 3), batch_size=2)["sum"].shape == ()
    with expect_error(NetError, ErrorCode.CONFLICT, blob="sum"):
        net.predict(items(4, 3), batch_size=2)


def test_several_rows_for_each_item_are_joined_in_order():
    net = net_of(RESHAPED.format("dim: -1 dim: 2"), x=(1, 6))
    x = items(5, 6)

    np.testing.assert_array_equal(net.predict(x, batch_size=2)["y"], x.reshape(15, 2))


def test_an_output_whose_rows_do_not_follow_the_items_is_refused():
    net = net_of(ONE_MORE, x=(1, 3))

    with expect_error(NetError, ErrorCode.SHAPE_MISMATCH, mentions=["(2, 3)", "(3, 3)"], blob="y"):
        net.predict(items(4, 3), batch_size=2)


def test_inputs_of_lengths_that_say_nothing_are_refused():
    net = net_of(SCALED, x=(1, 3), info=(3,))

    with expect_error(
        NetError, ErrorCode.CONFLICT, mentions="'x' (3, 3), 'info' (3,)", field="unbatched"
    ):
        net.predict({"x": items(3, 3), "info": items(3)}, batch_size=2)
    with expect_error(NetError, ErrorCode.CONFLICT, mentions="5", field="unbatched"):
        net.predict({"x": items(5, 3), "info": items(4)}, batch_size=2)


def test_the_caller_may_say_which_inputs_are_whole():
    net = net_of(SCALED, x=(1, 3), info=(3,))
    x, info = items(3, 3), items(3)

    found = net.predict({"x": x, "info": info}, batch_size=2, unbatched=["info"])

    np.testing.assert_allclose(found["y"], x * info, rtol=1e-6)
    with expect_error(
        NetError, ErrorCode.UNKNOWN, mentions="x, info", field="unbatched", got=["z"]
    ):
        net.predict({"x": x, "info": info}, batch_size=2, unbatched=["z"])


def test_a_net_that_takes_one_size_alone_says_so():
    net = net_of(RESHAPED.format("dim: 2 dim: 3"), x=(2, 3))

    with expect_error(ShapeError, place="a batch of 1 after one of 2"):
        net.predict(items(4, 3), batch_size=2)


# -- called like a function --------------------------------------------------------------------


def test_a_net_of_one_input_and_one_output_is_a_function_of_arrays(backend):
    net = net_of(POWER, backend, x=(4, 3))
    x = items(6, 3)

    y = net(x)
    again = net(x=-x)

    np.testing.assert_array_equal(y, 2 * x)  # a copy, which the next call leaves alone
    np.testing.assert_array_equal(again, -2 * x)


def test_a_net_of_several_inputs_and_outputs_takes_and_gives_them_by_name():
    net = net_of(SCALED + SCALED.replace('"scale"', '"more"').replace('"y"', '"z"'),
                 x=(1, 3), info=(3,))  # fmt: skip
    given = {"x": items(2, 3), "info": items(3)}

    by_name, in_a_dict = net(**given), net(given)

    assert list(by_name) == list(in_a_dict) == ["y", "z"]
    for name, array in by_name.items():
        np.testing.assert_array_equal(array, in_a_dict[name])


@pytest.mark.parametrize(
    ("given", "named", "code"),
    [
        ([items(2, 3)], {}, ErrorCode.INVALID),
        ([], {"x": items(2, 3)}, ErrorCode.UNKNOWN),
        ([items(2, 3)], {"info": items(3)}, ErrorCode.CONFLICT),
    ],
)
def test_inputs_that_are_missing_or_mixed_are_refused(given, named, code):
    net = net_of(SCALED, x=(1, 3), info=(3,))

    with expect_error(NetError, code):
        net(*given, **named)


def test_a_net_without_inputs_is_called_without():
    made = """layer { name: "d" type: "DummyData" top: "x"
        dummy_data_param { shape { dim: 2 } data_filler { value: 3 } } }"""

    np.testing.assert_array_equal(net_of(made)(), [3, 3])


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_has_items(batch):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="batch_size", got=batch):
        net_of(POWER, x=(4, 3)).predict(items(6, 3), batch_size=batch)


def test_a_batch_has_a_whole_number_of_items():
    with expect_error(ConfigError, ErrorCode.INVALID, field="batch_size", got=1.5):
        net_of(POWER, x=(4, 3)).predict(items(6, 3), batch_size=1.5)


@pytest.mark.parametrize(
    "given",
    [None, iter([[1, 2, 3]]), "abc", np.array([[1, "b", 3]], object), np.ones((1, 3)) * 1j],
    ids=["none", "generator", "text", "table", "complex"],
)
def test_what_has_no_numbers_is_refused(given):
    net = net_of(POWER, x=(4, 3))

    with expect_error(ShapeError, blob="x"):
        net.predict(given)
