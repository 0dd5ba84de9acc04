"""Iterations that are recorded once and then launched as one, against those queued one by one."""

import logging
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cuda_host import cuda_at
from expect_error import expect_error
from PIL import Image
from replays import played_from_now_on

import demitasse
from demitasse import Solver
from demitasse.backends.recording import NotRecorded
from demitasse.blob import Blob
from demitasse.core.config import settings
from demitasse.errors import DataError, DeviceError, ErrorCode, NetError
from demitasse.net.execution import Execution, Loss
from demitasse.plan.replay import Replay

NET = """
name: "small"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {
  kernel_size: 2 stride: 2 } }
layer { name: "flat" type: "Flatten" bottom: "pool" top: "flat" }
layer { name: "drop" type: "Dropout" bottom: "flat" top: "flat" include { phase: TRAIN } }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } %s }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "other" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "other"
  loss_weight: 0.5 }
"""
IMAGES = """
layer { name: "data" type: "ImageData" top: "data" top: "label"
  image_data_param { source: "list" batch_size: 1 } transform_param { scale: 0.01 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {
  pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
FIELDS = 'base_lr: 0.01 lr_policy: "step" gamma: 0.5 stepsize: 2 random_seed: 1'
TYPES = [
    "SGD",
    "Nesterov",
    "AdaGrad",
    "RMSProp",
    "AdaDelta",
    "Adam",
    "AdamW",
]  # what can be recorded


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.exhaustive), "cuda:0"])
def make(request, tmp_path, monkeypatch):
    """Makes a solver."""
    monkeypatch.chdir(tmp_path)
    device = cuda_at(request.param)

    def make(fields="", net=NET % "", **options):
        (tmp_path / "net.prototxt").write_text(net)
        path = tmp_path / "solver.prototxt"
        path.write_text(f'net: "net.prototxt" {FIELDS} {fields}')
        return Solver(path, device=device, **options)

    return make


@pytest.fixture(autouse=True)
def played(monkeypatch):
    """The iterations that were launched as one: a list that grows by one for each."""
    check.played = played_from_now_on(monkeypatch)
    return check.played


def state(solver):
    arrays = [blob.cpu_data().copy() for blob in solver.net.structure.params_list]
    arrays += [memory.cpu_data().copy() for memory in solver.history.memories]
    return arrays, solver.iter, solver.smoothed_loss, solver.lr, solver.net.passes


def assert_same(got, wanted):
    for a, b in zip(got[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_equal(got[1:], wanted[1:])


def check(make, run, *arguments, times, **options):
    """Hold what a run does against the same run queued one by one.

    Args:
        make: Makes a solver.
        run: Called with it.
        arguments: For ``make``.
        times: How many iterations are to be launched as one.
        options: For ``make``.
    """
    recorded = make(*arguments, **options)
    run(recorded)
    with settings.override(cuda_graphs="off"):
        queued = make(*arguments, **options)
        run(queued)

    assert len(check.played) == times
    assert_same(state(recorded), state(queued))


@pytest.mark.parametrize("kind", TYPES)
def test_a_run_is_the_same(make, kind):
    fields = "momentum: 0.9" if kind in {"SGD", "Nesterov", "Adam", "AdamW"} else ""
    fields += " weight_decay: 0.01 regularization_type: "
    fields += '"L2"' if kind == "AdamW" else '"L1"'

    check(make, lambda solver: solver.step(8), fields, times=6, type=kind)


@pytest.mark.parametrize("kind", ["LARS", "LAMB"])
def test_updates_with_a_rate_for_each_parameter_are_queued(make, kind):
    check(make, lambda solver: solver.step(8), "momentum: 0.9", times=0, type=kind)


@pytest.mark.parametrize("limit", [0.05, 1000])
def test_clipped_gradients(make, limit):
    def run(solver):
        solver.step(5)
        solver.param.clip_gradients = 2 * limit
        solver.step(4)

    check(make, run, f"clip_gradients: {limit}", times=5)


def test_gradients_of_several_batches(make):
    # the first of two batches clears the gradients, the other adds to them
    check(make, lambda solver: solver.step(6), "iter_size: 2 momentum: 0.9", times=4 + 4)


def test_in_double_precision(make):
    check(make, lambda solver: solver.step(5), times=3, dtype="float64")


def test_frozen_layers_stay_frozen(make):
    net = NET % "param { lr_mult: 0 } param { lr_mult: 2 decay_mult: 0 }"

    check(make, lambda solver: solver.step(6), "momentum: 0.9", net, times=4)


def test_what_is_displayed_tested_and_kept_on_the_way(make):
    fields = (
        "display: 3 test_interval: 4 test_iter: 2 test_initialization: false "
        'snapshot: 5 snapshot_prefix: "s"'
    )

    check(make, lambda solver: solver.step(11), fields, times=9 + 2)  # iterations and tests


def test_a_run_that_is_continued(make):
    def run(solver):
        solver.step(5)
        state = solver.snapshot("here")[1]
        solver.step(3)
        solver.restore(state)
        solver.step(5)

    check(make, run, "momentum: 0.9", times=11)


def test_what_the_host_writes_counts(make):
    def run(solver):
        solver.step(4)
        solver.net.params["ip"][0].mutable_cpu_data()[...] = 0.25
        solver.net.params["conv"][0].data[...] *= 0.5
        solver.param.base_lr = 0.3
        solver.step(3)

    check(make, run, times=5)


def test_what_the_host_reads_in_between(make):
    seen = []

    def run(solver):
        ip = solver.net.params["ip"][0]
        for _ in range(8):
            solver.step(1)
            seen.append((ip.cpu_data().copy(), ip.cpu_diff().copy()))
            solver.step(1)

    check(make, run, "momentum: 0.9", times=14)
    for recorded, queued in zip(seen[:8], seen[8:], strict=True):
        np.testing.assert_array_equal(recorded, queued)


def test_launches_are_switched_off_and_on(make):
    def run(solver):
        for graphs in ("auto", "off", "auto"):
            before = settings.get("cuda_graphs")
            with settings.override(cuda_graphs="off" if before == "off" else graphs):
                solver.step(5)

    check(make, run, "momentum: 0.9", times=3 + 3)


def test_gradients_that_a_callback_adds(make):
    def run(solver):
        solver.step(5)
        ip = solver.net.params["ip"][0]
        solver.on_start.append(lambda: ip.diff_memory.mutable_cpu_data().fill(0.5))
        solver.step(3)

    check(make, run, times=3 + 1)


@pytest.mark.parametrize("make", ["cuda:0"], indirect=True)
def test_between_launches_only_inputs_and_outputs_are_looked_at(make, monkeypatch):
    solver = make("momentum: 0.9")
    solver.step(5)
    [guard] = {m.watch.guard for m in solver.history.memories} - {None}  # of frozen parameters
    order, ordered = guard._order, []
    monkeypatch.setattr(guard, "_order", lambda some: ordered.append(len(some)) or order(some))

    solver.step(2)
    solver.net.params["ip"][0].mutable_cpu_data()[...] = 0.25
    solver.step(2)

    tops = len(solver.net.layers[0].param.top) + len(solver.net.outputs)
    assert ordered == [tops, tops, ordered[2], tops]
    assert ordered[2] > 5 * tops


INPUTS = NET.replace(
    'type: "DummyData" top: "data" top: "label" dummy_data_param {',
    'type: "Input" top: "data" top: "label" input_param {',
).replace('  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }', "} }")

MOST_CALLS = 200
"""Calls of the package's functions in an iteration that is launched as one."""


@pytest.mark.parametrize("make", ["cuda:0"], indirect=True)
def test_the_host_calls_few_functions_for_an_iteration(make, monkeypatch):
    solver, package = make(net=INPUTS % ""), str(Path(demitasse.__file__).parent)
    solver.step(6)
    called = []
    monkeypatch.setattr("gpu.graphs.Graph.launch", lambda self, stream=None: None)

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            called.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        solver.step(1)
    finally:
        sys.setprofile(before)

    assert len(check.played) == 5
    assert len(called) <= MOST_CALLS, Counter(called).most_common(30)


def test_a_pass_of_ones_own_in_between(make):
    def run(solver):
        for _ in range(6):
            solver.step(1)
            solver.net.forward_backward()

    check(make, run, times=4 + 4)


def test_another_size_of_batch_is_recorded_anew(make):
    def run(solver):
        solver.step(4)
        data = solver.net.layers[0].param.dummy_data_param
        for shape in data.shape:
            shape.dim[0] = 6
        for top in ("data", "label"):
            solver.net.blobs[top].reshape(6, *solver.net.blobs[top].shape[1:])
        solver.step(5)

    check(make, run, times=4)


def test_data_that_comes_in_another_size_is_recorded_anew(make, tmp_path):
    images = [(12, 12)] * 5 + [(9, 15)] * 4
    names = [tmp_path / f"{index}.png" for index in range(len(images))]
    for index, (path, shape) in enumerate(zip(names, images, strict=True)):
        pixels = np.random.default_rng(index).integers(0, 256, (*shape, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    (tmp_path / "list").write_text("".join(f"{path} {i % 3}\n" for i, path in enumerate(names)))

    check(make, lambda solver: solver.step(9), "", IMAGES, times=3 + 1)


def test_a_moved_memory_is_recorded_anew(make):
    def run(solver):
        solver.step(4)
        blob = solver.net.params["ip"][0]
        blob.set_gpu_data(blob.gpu_data().copy())
        solver.step(4)

    check(make, run, times=4)


def test_a_loss_that_ends_the_run_leaves_it_as_it_was(make):
    def run(solver):
        solver.step(4)
        before = state(solver)
        weights = solver.net.params["ip"][0]
        kept = weights.cpu_data().copy()
        weights.mutable_cpu_data()[...] = np.nan
        with expect_error(NetError, ErrorCode.NOT_FINITE, iteration=4):
            solver.step(1)
        weights.mutable_cpu_data()[...] = kept
        assert_same(state(solver), before)
        solver.step(2)

    check(make, run, times=5, on_nonfinite="raise")


def test_another_loss_that_is_no_number_is_warned_of(make, caplog):
    def run(solver):
        solver.step(4)
        solver.net.params["ip"][1].mutable_cpu_data()[0] = np.inf
        solver.step(2)

    with caplog.at_level(logging.WARNING):
        check(make, run, times=5)  # the first of the two is launched again

    assert caplog.text.count("nan at iteration 4") == 2


class TestLossesThatAreReadLater:
    """Further iterations follow, so the next one is prepared before the loss is read."""

    @pytest.fixture
    def done(self, monkeypatch):
        """What is done in turn."""
        done = []

        def noted(kind, name, what):
            method = getattr(kind, name)
            monkeypatch.setattr(kind, name, lambda *a, **k: (done.append(what), method(*a, **k))[1])

        noted(Execution, "queue_sources", "load")
        noted(Loss, "_to_host", "read")
        noted(Replay, "play", "launch")
        return done

    def test_the_next_iteration_is_prepared_before(self, make, done):
        solver = make()
        solver.step(4)
        done.clear()

        solver.step(3)

        assert done == ["load", "launch", *2 * ["load", "read", "launch"], "read"]

    @pytest.mark.parametrize(
        "fields",
        ["display: 1", "test_interval: 1 test_iter: 1", 'snapshot: 1 snapshot_prefix: "s"'],
    )
    def test_it_is_read_before_what_needs_it(self, make, done, fields):
        solver = make(fields)
        solver.step(4)
        done.clear()

        solver.step(3)

        assert done.count("launch") >= 3
        assert {after for one, after in pairwise(done) if one == "launch"} == {"read"}

    def spoiled(self, solver, at, value):
        """Give one iteration data that are no numbers, or labels that are no classes; or fail."""
        data = solver.net.layers[0]
        ran = data.forward

        def forward(bottom, top):
            ran(bottom, top)
            if solver.iter == at and isinstance(value, Exception):
                raise value
            if solver.iter == at:
                blob = top[0] if np.isnan(value) else top[1]
                blob.mutable_cpu_data().reshape(-1)[:2] = value

        data.forward = forward

    @pytest.mark.parametrize("at", [4, 6, 7])
    @pytest.mark.parametrize("fields", ["", "average_loss: 3 momentum: 0.9"])
    @pytest.mark.parametrize(
        ("value", "error", "mentions"),
        [
            (float("nan"), NetError, "top 'data'"),
            (9, DataError, "label 9"),
            (RuntimeError("no data"), RuntimeError, "no data"),
        ],
    )
    def test_an_error_leaves_the_run_before_its_iteration(
        self, make, at, fields, value, error, mentions
    ):
        def run(solver):
            whole = solver.net.layers[0].forward
            self.spoiled(solver, at, value)
            with pytest.raises(error, match=mentions):
                solver.step(12)
            assert solver.iter == at
            solver.net.layers[0].forward = whole
            solver.net.blobs["label"].mutable_cpu_data().fill(1)
            solver.step(3)

        launched = make(fields, on_nonfinite="raise")
        run(launched)
        with settings.override(cuda_graphs="off"):
            queued = make(fields, on_nonfinite="raise")
            run(queued)

        assert_same(state(launched), state(queued))

    @pytest.mark.parametrize("at", [4, 7])
    def test_a_bad_loss_is_warned_of_and_the_run_goes_on(self, make, at, caplog):
        def run(solver):
            self.spoiled(solver, at, float("nan"))
            solver.step(9)

        with caplog.at_level(logging.WARNING):
            launched = make("average_loss: 2")
            run(launched)
            with settings.override(cuda_graphs="off"):
                queued = make("average_loss: 2")
                run(queued)

        assert_same(state(launched), state(queued))
        assert caplog.text.count(f"nan at iteration {at}") == 2

    def test_a_request_comes_after_the_last_loss(self, make):
        def run(solver):
            solver.step(3)
            solver.request("stop")
            solver.step(5)
            solver.step(4)

        check(make, run, "average_loss: 3", times=2 + 4)


MOVED = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 6 dim: 8 dim: 8 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "Normalize" bottom: "conv" top: "norm" }
layer { name: "slice" type: "Slice" bottom: "norm" top: "one" top: "two" }
layer { name: "bias" type: "Bias" bottom: "one" top: "bias" bias_param {
  filler { type: "constant" value: 0.25 } } }
layer { name: "mean" type: "Pooling" bottom: "two" top: "mean" pooling_param {
  pool: AVE global_pooling: true } }
layer { name: "axpy" type: "Axpy" bottom: "mean" bottom: "bias" bottom: "two" top: "axpy" }
layer { name: "shuffle" type: "ShuffleChannel" bottom: "axpy" top: "shuffle"
  shuffle_channel_param { group: 2 } }
layer { name: "reorg" type: "Reorg" bottom: "shuffle" top: "reorg" reorg_param { stride: 2 } }
layer { name: "permute" type: "Permute" bottom: "reorg" top: "permute"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "tile" type: "Tile" bottom: "permute" top: "tile" tile_param { tiles: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "tile" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("make", ["cuda:0"], indirect=True)
def test_layers_without_kernels_that_only_move_and_add(make):
    check(make, lambda solver: solver.step(6), "momentum: 0.9", MOVED, times=4)


BEHIND = """
layer { name: "more" type: "DummyData" top: "more" dummy_data_param { shape { dim: 1 } } }
layer { name: "quiet" type: "Silence" bottom: "more" }
"""


class TestObstacles:
    @pytest.mark.parametrize(
        ("net", "why"),
        [
            (NET.replace('"ReLU"', '"MVN"') % "", "layer 'relu' (MVN) "),
            (NET % "" + BEHIND, "layer 'more' (DummyData) "),
        ],
    )
    def test_what_stands_in_the_way_is_said_once(self, make, caplog, net, why):
        with caplog.at_level(logging.INFO):
            check(make, lambda solver: solver.step(6), "", net, times=0)

        [said] = [text for text in caplog.messages if "not launched as one" in text]
        assert why in said

    def test_callbacks_are_called_in_every_pass(self, make):
        seen = []

        def run(solver):
            solver.step(4)
            solver.net.after_forward.append(seen.append)
            solver.step(2)
            solver.net.after_forward.clear()
            solver.step(4)

        check(make, run, times=5)
        assert len(seen) == 2 * 2 * 13

    def test_a_live_view_shows_every_iteration(self, make):
        def run(solver):
            solver.step(4)
            view = solver.net.params["ip"][0].data
            before = view.copy()
            solver.step(1)
            assert (view != before).any()
            view[...] = before
            solver.step(1)

        check(make, run, times=2)

    def test_a_live_view_of_another_net_does_not_count(self, make):
        view = Blob((2,)).data

        check(make, lambda solver: solver.step(4), times=2)
        assert not view.any()

    def test_buffers_that_blobs_share_do_not(self, make):
        check(make, lambda solver: solver.step(5), times=3, keep_blobs="outputs")

    @pytest.mark.parametrize("error", [NotRecorded("no"), DeviceError("no room")])
    def test_a_device_that_cannot_goes_on_without(self, make, caplog, monkeypatch, error):
        def run(solver):
            recorder = solver.net.device.backend.recorder
            record = recorder.record

            def refuse(work):
                record(work)
                raise error

            monkeypatch.setattr(recorder, "record", refuse)
            solver.step(6)

        with caplog.at_level(logging.INFO):
            check(make, run, times=0)

        assert caplog.text.count("not launched as one: no") == 1
