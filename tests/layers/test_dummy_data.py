"""DummyData."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.testing import make_layer

UNIFORM = 'data_filler { type: "uniform" min: 1 max: 2 }'


def layer(fields, tops=1, **options):
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    return make_layer(f'type: "DummyData" dummy_data_param {{ {fields} }} {names}', **options)


def test_one_shape_and_no_filler_give_zeros_to_all_tops(backend):
    one = layer("shape { dim: 2 dim: 3 }", tops=2, device=backend)

    for y in one.forward():
        np.testing.assert_array_equal(y, np.zeros((2, 3)))


def test_each_top_may_have_its_own_shape_and_filler(backend):
    one = layer(
        f"shape {{ dim: 2 }} shape {{ dim: 3 dim: 4 }} data_filler {{ value: 5 }} {UNIFORM}",
        tops=2, device=backend,
    )  # fmt: skip

    first, second = one.forward()

    np.testing.assert_array_equal(first, [5, 5])
    assert second.shape == (3, 4)
    assert ((second >= 1) & (second <= 2)).all()


def test_four_numbers_give_four_axes(backend):
    one = layer("num: 2 channels: 3 height: 4 height: 6 width: 5", tops=2, device=backend)

    assert [y.shape for y in one.forward()] == [(2, 3, 4, 5), (2, 3, 6, 5)]


def test_a_constant_is_filled_once_and_what_is_written_stays(backend):
    one = layer("shape { dim: 2 } data_filler { value: 5 }", device=backend)
    np.testing.assert_array_equal(one.top[0].data, [5, 5])

    one.top[0].data[...] = 8

    np.testing.assert_array_equal(one.forward()[0], [8, 8])


def test_a_random_top_is_filled_before_every_forward(backend):
    one = layer(f"shape {{ dim: 50 }} {UNIFORM}", device=backend)

    first, second = one.forward()[0], one.forward()[0]

    assert (first != second).any()


def test_tops_that_share_a_filler_get_different_numbers():
    one = layer(f"shape {{ dim: 50 }} {UNIFORM}", tops=2)

    first, second = one.forward()

    assert (first != second).any()


def test_numbers_depend_on_the_seed_and_not_on_the_device(backend):
    fields = f"shape {{ dim: 50 }} {UNIFORM}"
    expected = layer(fields, device="numpy").forward()[0]

    np.testing.assert_array_equal(layer(fields, device=backend).forward()[0], expected)
    assert (layer(fields, device=backend, seed=2).forward()[0] != expected).any()


def test_a_resumed_layer_continues_with_the_same_numbers():
    fields = f"shape {{ dim: 50 }} {UNIFORM}"
    one = layer(fields)
    one.forward()
    state = one.layer.state()
    second = one.forward()[0]

    other = layer(fields)
    other.layer.set_state(state)

    np.testing.assert_array_equal(other.forward()[0], second)


def test_a_reshaped_top_is_filled_in_its_new_shape():
    one = layer(f"shape {{ dim: 5 }} {UNIFORM}")

    one.top[0].reshape(3, 4)

    assert one.forward()[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ("", ErrorCode.COUNT_MISMATCH, "dummy_data_param.shape"),
        ("shape { dim: 1 } shape { dim: 1 }", ErrorCode.COUNT_MISMATCH, "dummy_data_param.shape"),
        (
            "shape { dim: 1 } data_filler { } data_filler { }",
            ErrorCode.COUNT_MISMATCH,
            "dummy_data_param.data_filler",
        ),
        ("shape { dim: 1 } num: 1", ErrorCode.CONFLICT, "dummy_data_param.shape"),
        ("num: 1 channels: 1 height: 1", ErrorCode.COUNT_MISMATCH, "dummy_data_param.width"),
        (
            "num: 1 num: 2 channels: 1 height: 1 width: 1",
            ErrorCode.COUNT_MISMATCH,
            "dummy_data_param.num",
        ),
        ('shape { dim: 1 } data_filler { type: "nonsense" }', ErrorCode.UNKNOWN, "type"),
        ('shape { dim: 1 } data_filler { type: "bilinear" }', ErrorCode.SHAPE_MISMATCH, "type"),
    ],
)
def test_what_does_not_fit_three_tops_is_refused(fields, code, field):
    with expect_error(ConfigError, code, field=field):
        layer(fields, tops=3)


def test_bottoms_are_refused():
    with expect_error(
        NetError, ErrorCode.COUNT_MISMATCH, blobs="bottoms", got=1, mentions="DummyData"
    ):
        make_layer('type: "DummyData" dummy_data_param { shape { dim: 1 } }', [np.zeros(1)])
