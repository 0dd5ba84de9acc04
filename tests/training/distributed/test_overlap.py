"""Gradients that are exchanged beside the backward pass, or in half precision."""

import threading

import numpy as np
import pytest
from cuda_host import host_cuda
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, DataError, ErrorCode, ParallelError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.training.distributed.allreduce import fp16_mean, from_fp16, to_fp16
from demitasse.training.distributed.group import DistributedGroup, LocalCommunicator, Shards
from demitasse.training.distributed.overlap import GradientOverlap, buckets
from demitasse.training.distributed.threads import run_in_threads

SHARED = """
name: "shared"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 6 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { } } }
layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" param { name: "w" } param { }
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b"
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "c" type: "InnerProduct" bottom: "b" top: "c" param { name: "w" } param { }
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "d" type: "InnerProduct" bottom: "c" top: "d"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "d" bottom: "label" top: "loss" }
"""


AVERAGES = """
name: "averages"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 2 dim: 2 } shape { dim: 4 }
  data_filler { type: "gaussian" std: 40 mean: 100 } data_filler { } } }
layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" }
layer { name: "ip" type: "InnerProduct" bottom: "bn" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
RNG = np.random.default_rng(7)


def net(text=SHARED):
    return Net(parse_text(text, NetParameter), "TRAIN", device="numpy", seed=1)


class TestBuckets:
    def test_they_are_all_gradients_from_the_end(self):
        made = net()

        found = buckets(made, least=100)

        total = sum(blob.count for blob in made.learnable_params)
        assert found[0].part.stop == total
        assert found[-1].part.start == 0
        assert [one.part.start for one in found[:-1]] == [one.part.stop for one in found[1:]]
        assert [i for one in reversed(found) for i in one.params] == list(
            range(len(made.learnable_params))
        )

    def test_a_shared_parameter_is_complete_with_its_first_layer(self):
        made = net()
        names = [layer.name for layer in made.layers]

        layers = {i: names[one.layer] for one in buckets(made, least=1) for i in one.params}

        # w and the bias of a, weight and bias of b, the bias of c, weight and bias of d
        assert [layers[i] for i in range(7)] == ["a", "a", "b", "b", "c", "d", "d"]

    def test_few_gradients_are_one_bucket(self):
        [one] = buckets(net())

        assert one.layer == 1


class TestOrder:
    """A communicator that only waits shows what is exchanged when."""

    @pytest.fixture
    def seen(self):
        return []

    @pytest.fixture
    def crew(self, seen, monkeypatch):
        """One process with two shards, whose buckets are small."""
        monkeypatch.setattr("demitasse.training.distributed.overlap.BUCKET_BYTES", 1)
        made = net()
        team = DistributedGroup(
            [made, made.clone(rank=1)], LocalCommunicator(), Shards(2), overlap=True
        )
        mean = team._overlap._mean

        def noted(parts):
            seen.append((threading.current_thread().name, parts[0].size))
            mean(parts)

        team._overlap._mean = noted
        completed = team._overlap._layer_completed

        def layer(index):
            completed(index)
            for one in team._overlap._started:
                one.result()
            seen.append(index)

        team._overlap._layer_completed = layer
        return team, made

    def test_a_bucket_is_exchanged_as_soon_as_its_last_layer_is_done(self, crew, seen):
        team, made = crew

        team.forward_backward(1)

        names = [layer.name for layer in made.layers]
        order = [names[one] if isinstance(one, int) else one[1] for one in seen]
        assert order == ["loss", 3, 18, "d", 6, "c", 6, 36, "b", 6, 36, "a", "data"]
        threads = {one[0] for one in seen if not isinstance(one, int)}
        assert threads == {"gradients_0"}

    def test_of_several_batches_the_last_is_meant(self, crew, seen):
        team, made = crew

        team.forward_backward(3)

        assert len([one for one in seen if isinstance(one, int)]) == len(made.layers)


class TestCutShort:
    """An iteration that is cut short is done again, to the same gradients."""

    def made(self, *, overlap=True):
        made = net(AVERAGES)
        return DistributedGroup(
            [made, made.clone(rank=1)], LocalCommunicator(), Shards(2), overlap=overlap
        ), made

    @pytest.mark.parametrize("place", ["_start", "_layer_completed", "finish"])
    def test_where_gradients_are_exchanged(self, monkeypatch, place):
        (team, made), (other, whole) = self.made(), self.made(overlap=False)
        overlap, work = team._overlap, getattr(GradientOverlap, place)
        calls = []

        def cut(self, *args):
            calls.append(args)
            if len(calls) == 1:
                if place == "finish":
                    self._lost = True  # as where it is cut short behind its first line
                raise KeyboardInterrupt
            return work(self, *args)

        monkeypatch.setattr(GradientOverlap, place, cut)
        with pytest.raises(KeyboardInterrupt):
            team.forward_backward(2)
        monkeypatch.undo()
        other.forward_backward(2)

        for one in (made, whole):
            one.clear_param_diffs()
        team.forward_backward(2)
        other.forward_backward(2)

        assert overlap._started == []
        for a, b in zip(made.learnable_params, whole.learnable_params, strict=True):
            np.testing.assert_array_equal(a.cpu_diff(), b.cpu_diff())

    def test_the_thread_is_waited_for(self):
        team, _ = self.made()
        team.forward_backward(1)
        held = threading.Event()
        team._overlap.begin()
        waiting = team._overlap._thread.submit(held.wait)
        threading.Timer(0.2, held.set).start()

        team._overlap.begin()

        assert waiting.done()


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("numpy", ""),
        ("cpu", "iter_size: 2"),
        pytest.param("cpu", "", marks=pytest.mark.exhaustive),
        pytest.param("numpy", "iter_size: 2", marks=pytest.mark.exhaustive),
    ],
)
def test_the_bits_are_those_of_one_exchange_at_the_end(train, device, text, monkeypatch):
    monkeypatch.setattr("demitasse.training.distributed.overlap.BUCKET_BYTES", 200)

    def work(solver):
        solver.param.iter_size = 2 if text else 1
        solver.step(6)

    [(_, expected)], _ = train(1, work, device=device)

    for size in (1, 2, 3):
        results, errors = train(size, work, device=device, overlap=True)
        assert errors == [None] * size
        assert {weights for _, weights in results} == {expected}


def test_a_process_that_fails_in_its_pass_ends_all(train, monkeypatch):
    monkeypatch.setattr("demitasse.training.distributed.overlap.BUCKET_BYTES", 200)

    def fail(solver):
        if solver.net._context.rank == 1:

            def wrong(index):
                message = "no such record"
                raise DataError(message)

            solver.net.before_forward.append(wrong)
        solver.step(6)

    _, errors = train(2, fail, device="numpy", overlap=True, timeout=20)

    assert isinstance(errors[1], DataError)
    assert isinstance(errors[0], ParallelError)
    assert errors[0].details["rank"] == 1
    assert "DataError: no such record" in str(errors[0])


def test_a_process_that_fails_outside_a_pass_exchanges_no_gradients():
    def fail(one):
        crew = DistributedGroup([net()], one, Shards(2, one.rank, 2), overlap=True)

        def work():
            if one.rank == 1:
                message = "no such record"
                raise DataError(message)

        with pytest.raises((DataError, ParallelError)) as caught:
            crew.allgather(work)
        return str(caught.value)

    told = run_in_threads(2, fail, timeout=20)

    assert told == ["process 1 failed: DataError: no such record", "no such record"]


def test_who_does_not_come_is_named(train):
    def leave(solver):
        if solver.net._context.rank != 1:
            solver.step(6)

    _, errors = train(2, leave, timeout=0.5, device="numpy", overlap=True)

    assert errors[0].code == ErrorCode.TIMEOUT
    assert errors[0].details["late"] == [1]


def test_devices_that_queue_are_refused():
    made = Net(parse_text(SHARED, NetParameter), "TRAIN", device=host_cuda())

    with expect_error(ConfigError, ErrorCode.UNSUPPORTED, mentions="host-cuda", field="overlap"):
        DistributedGroup([made], LocalCommunicator(), Shards(1), overlap=True)


# -- half precision ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-30, 1e-5, 1.0, 1e30])
def test_values_of_any_size_arrive_with_eleven_bits(dtype, scale):
    values = (np.random.default_rng(1).normal(size=1000) * scale).astype(dtype)
    found = np.empty_like(values)

    from_fp16(to_fp16(values), found)

    largest = np.abs(values).max()
    np.testing.assert_allclose(found, values, rtol=2.0**-11, atol=largest * 2.0**-38)


def test_no_values_arrive_as_none_and_zeros_as_zeros():
    for values in (np.zeros(0, np.float32), np.zeros(5, np.float32)):
        found = np.ones_like(values)
        from_fp16(to_fp16(values), found)
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_no_finite_number_arrives(dtype):
    values = np.array([1.5, np.nan, np.inf, -np.inf], dtype)
    found = np.empty_like(values)

    from_fp16(to_fp16(values), found)

    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stray", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_what_is_no_finite_number_changes_nothing_of_the_others(dtype, stray, scale):
    values = (RNG.normal(size=1000) * scale).astype(dtype)
    alone, beside = np.empty_like(values), np.empty(1001, dtype)
    from_fp16(to_fp16(values), alone)

    from_fp16(to_fp16(np.append(values, values.dtype.type(stray))), beside)

    np.testing.assert_array_equal(beside[:-1], alone)
    np.testing.assert_array_equal(beside[-1], stray)


@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e100, 1e300])
def test_double_precision_has_its_own_range(scale):
    values = RNG.normal(size=1000) * scale
    found = np.empty_like(values)

    from_fp16(to_fp16(values), found)

    largest = np.abs(values).max()
    np.testing.assert_allclose(found, values, rtol=2.0**-11, atol=largest * 2.0**-38)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_numbers_are_not_rounded_to_infinity(dtype):
    most = np.finfo(dtype).max
    values = np.array([most, -most, most / 4], dtype)
    found = np.empty_like(values)

    from_fp16(to_fp16(values), found)

    np.testing.assert_allclose(found, values, rtol=2.0**-11)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_have_the_same_mean_and_it_is_close(size):
    parts = np.random.default_rng(2).normal(size=(size, 1001)).astype(np.float32)

    def work(one):
        mine = parts[one.rank].copy()
        fp16_mean(one, Shards(size, one.rank, size), [mine], bucket=800)
        return mine

    results = run_in_threads(size, work)

    for one in results:
        np.testing.assert_array_equal(one, results[0])
    largest = np.abs(parts).max()
    np.testing.assert_allclose(
        results[0], parts.mean(axis=0, dtype=np.float64), atol=2 * 2.0**-11 * largest
    )


def test_a_run_in_half_precision_has_the_same_weights_everywhere(train):
    results, errors = train(2, device="cpu", allreduce="fp16")
    [(_, alone)], _ = train(1, device="cpu")

    assert errors == [None, None]
    assert len({weights for _, weights in results}) == 1
    assert results[0][1] != alone


@pytest.mark.parametrize("overlap", [False, True])
def test_losses_and_running_averages_are_those_of_exact_sums(overlap):
    def work(allreduce):
        def passes(one):
            made = net(AVERAGES).clone(rank=one.rank)
            crew = DistributedGroup([made], one, Shards(2, one.rank, 2), allreduce, overlap=overlap)
            losses = [crew.forward_backward(1) for _ in range(3)]
            return losses, [blob.cpu_data().copy() for blob in made.layers[1].blobs]

        return run_in_threads(2, passes)

    found, expected = work("fp16"), work("deterministic")

    for (losses, averages), (wanted, means) in zip(found, expected, strict=True):
        assert losses == wanted
        for one, mean in zip(averages, means, strict=True):
            np.testing.assert_array_equal(one, mean)
