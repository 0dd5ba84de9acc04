"""BatchReindex and Filter: layers that choose items of a batch."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing import check_gradients, make_layer

X = np.random.default_rng(0).normal(0, 1, (4, 2, 3))


# -- BatchReindex ----------------------------------------------------------------------------------


def reindex(indices, x=X, **options):
    return make_layer('type: "BatchReindex"', [x, indices], **options)


def test_reindex_repeats_and_reorders(backend):
    indices = [3, 0, 3, 3, 1]

    [y] = reindex(indices, device=backend).forward()

    np.testing.assert_array_equal(y, X[indices])


def test_reindex_may_choose_nothing(backend):
    one = reindex(np.zeros(0), device=backend)

    [y] = one.forward()

    assert y.shape == (0, 2, 3)
    np.testing.assert_array_equal(one.backward(y)[0], np.zeros_like(X))


def test_reindex_adds_up_the_gradients(backend):
    expect_gradients('type: "BatchReindex"', X, [3, 0, 3, 3, 1], device=backend)


def test_an_infinite_gradient_of_one_item_leaves_the_others_alone(backend):
    one = reindex([3, 0, 3, 1], device=backend)
    one.forward()
    dy = np.ones_like(one.top[0].data)
    dy[1] = np.inf

    dx = one.backward(dy)[0]

    assert np.isinf(dx[0]).all()
    assert (dx[1] == 1).all()
    assert not dx[2].any()
    assert (dx[3] == 2).all()


def test_reindex_knows_no_gradient_of_indices():
    with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom1"):
        reindex([0]).backward(propagate_down=[True, True])


@pytest.mark.parametrize("index", [4, -1])
def test_reindex_refuses_an_index_outside_the_batch(index, backend):
    one = reindex([0, index, 1], device=backend)

    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="bottom1", got=index):
        one.forward()


def test_reindex_refuses_indices_that_are_not_a_list():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(M,)"):
        reindex([[0, 1]])


# -- Filter ----------------------------------------------------------------------------------------

PAIR = X, np.arange(4.0)


def filtered(selector, bottoms=PAIR, **options):
    tops = "".join(f' top: "t{i}"' for i in range(len(bottoms)))
    return make_layer(f'type: "Filter"{tops}', [*bottoms, selector], **options)


def test_filter_passes_on_what_is_not_0(backend):
    selector = np.array([1.0, 0, -2, 0])

    tops = filtered(selector, device=backend).forward()

    for top, bottom in zip(tops, PAIR, strict=True):
        np.testing.assert_array_equal(top, bottom[[0, 2]])


def test_filter_has_room_for_all_until_it_has_run():
    one = filtered(np.zeros(4))
    assert [blob.shape for blob in one.top] == [(4, 2, 3), (4,)]

    one.forward()

    assert [blob.shape for blob in one.top] == [(0, 2, 3), (0,)]


@pytest.mark.parametrize("selector", [[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
def test_filter_gradients(selector, backend):
    one = filtered(np.array(selector, float), device=backend)

    check_gradients(one)


def test_filter_gives_gradient_0_where_nothing_passes(backend):
    one = filtered(np.zeros(4), device=backend)
    one.forward()

    first, second, third = one.backward()

    np.testing.assert_array_equal(first, np.zeros((4, 2, 3)))
    np.testing.assert_array_equal(second, np.zeros(4))
    assert third is None


def test_filter_follows_the_selector_from_pass_to_pass(backend):
    net = Net(
        parse_text(
            """
            force_backward: true
            layer { name: "x" type: "Input" top: "x" top: "s"
                    input_param { shape { dim: 4 dim: 2 } shape { dim: 4 dim: 1 } } }
            layer { name: "f" type: "Filter" bottom: "x" bottom: "s" top: "y" }
            layer { name: "r" type: "Reduction" bottom: "y" top: "loss" loss_weight: 2 }
            """,
            NetParameter,
        ),
        "TRAIN",
        device=backend,
    )
    x = np.arange(8.0).reshape(4, 2)
    net.blobs["x"].data = x
    for selector in ([1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]):
        chosen = np.array(selector, bool)
        net.blobs["s"].data[:, 0] = selector

        loss = net.forward_backward()

        assert loss == pytest.approx(2 * x[chosen].sum())
        assert net.blobs["y"].shape == (chosen.sum(), 2)
        np.testing.assert_array_equal(net.blobs["x"].diff, 2 * chosen[:, None] * np.ones((4, 2)))


def test_filter_refuses_another_number_of_tops():
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, blobs="tops", got=1):
        make_layer('type: "Filter" top: "a"', [*PAIR, np.ones(4)])


def test_filter_refuses_batches_of_different_sizes():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="Filter"):
        filtered(np.ones(3))


def test_filter_refuses_a_selector_with_several_values_for_an_item():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="Filter"):
        filtered(np.ones((4, 2)))


def test_filter_knows_no_gradient_of_the_selector():
    one = filtered(np.ones(4))
    one.forward()

    with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom2"):
        one.backward(propagate_down=[True, True, True])
