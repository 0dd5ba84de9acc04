"""Forward passes that are recorded once and then launched as one, against those queued."""

from pathlib import Path

import numpy as np
import pytest
from cuda_host import cuda_at
from expect_error import expect_error
from PIL import Image
from replays import played_from_now_on

from demitasse import Net
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings
from demitasse.errors import DeviceError, ErrorCode, NetError

LAYERS = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {
  kernel_size: 2 stride: 2 } }
layer { name: "flat" type: "Flatten" bottom: "pool" top: "flat" }
layer { name: "drop" type: "Dropout" bottom: "flat" top: "flat" }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
"""
GIVEN = (
    """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
"""
    + LAYERS
    + 'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }'
)
MADE = (
    """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
"""
    + LAYERS
    + """
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "other" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "other"
  loss_weight: 0.5 }
"""
)
IMAGES = """
layer { name: "data" type: "ImageData" top: "data" top: "label"
  image_data_param { source: "list" batch_size: 1 } transform_param { scale: 0.01 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {
  pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.exhaustive), "cuda:0"])
def make(request, tmp_path):
    """Makes a net."""
    device = cuda_at(request.param)

    def make(text=GIVEN, phase="TEST", **options):
        path = tmp_path / "net.prototxt"
        path.write_text(text)
        net = Net(path, phase, device=device, seed=1, **options)
        for average in net.params["bn"]:
            average.mutable_cpu_data()[...] = 1
        return net

    return make


@pytest.fixture(autouse=True)
def played(monkeypatch):
    """The passes that were launched as one: a list that grows by one for each."""
    check.played = played_from_now_on(monkeypatch)
    return check.played


def images(count, seed=0):
    shape = (count, 3, 8, 8)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(make, run, *arguments, times, **options):
    """Hold what a run gives against the same run queued layer by layer.

    Args:
        make: Makes a net.
        run: Called with it; returns numbers and arrays.
        arguments: For ``make``.
        times: How many passes are to be launched as one.
        options: For ``make``.
    """
    launched = make(*arguments, **options)
    got = run(launched)
    with settings.override(cuda_graphs="off"):
        queued = make(*arguments, **options)
        wanted = run(queued)

    assert len(check.played) == times
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    for name, blob in launched.blobs.items():
        np.testing.assert_array_equal(blob.cpu_data(), queued.blobs[name].cpu_data())
    assert launched.passes == queued.passes


def test_each_input_gives_its_own_output(make):
    check(make, lambda net: [net(images(2, seed)) for seed in range(6)], times=4)


def test_in_double_precision(make):
    check(make, lambda net: [net(images(2, s)) for s in range(4)], times=2, dtype="float64")


def test_losses_of_data_that_the_net_brings_in_itself(make):
    check(make, lambda net: [net.forward() for _ in range(6)], MADE, times=4)


def test_a_training_net_draws_and_averages_in_every_pass(make):
    def run(net):
        losses = [net.forward() for _ in range(5)]
        return [*losses, *(blob.cpu_data().copy() for blob in net.params["bn"])]

    check(make, run, MADE, "TRAIN", times=3)


def test_backward_follows_a_launched_pass(make):
    def run(net):
        found = []
        for _ in range(5):
            net.clear_param_diffs()
            found.append(net.forward())
            net.backward()
            found += [blob.cpu_diff().copy() for blob in net.learnable_params]
            net.update()
        return found

    check(make, run, MADE, "TRAIN", times=3)


def test_backward_follows_the_last_of_different_passes(make):
    def run(net):
        losses = [net.forward() for _ in range(4)]
        losses.append(net.forward_backward())
        losses += [net.forward() for _ in range(4)]
        net.forward("conv", "pool")
        losses.append(net.forward())
        net.backward()
        return [*losses, *(blob.cpu_diff().copy() for blob in net.learnable_params)]

    check(make, run, MADE, "TRAIN", times=2 + 4 + 1)


def test_forward_and_backward_in_one(make):
    def run(net):
        found = []
        for _ in range(5):
            net.clear_param_diffs()
            found.append(net.forward_backward())
            found += [blob.cpu_diff().copy() for blob in net.learnable_params]
            net.update()
        return found

    check(make, run, MADE, "TRAIN", times=3)


def test_gradients_of_several_batches_are_added(make):
    def run(net):
        found = []
        for _ in range(5):
            net.clear_param_diffs()
            found += [net.forward_backward() for _ in range(3)]
            found += [blob.cpu_diff().copy() for blob in net.learnable_params]
        return [*found, *(blob.cpu_data().copy() for blob in net.params["bn"])]

    # the first of three clears the gradients, the others add to them
    check(make, run, MADE, "TRAIN", times=3 + 8)


def test_backward_once_more_after_passes_in_one(make):
    def run(net):
        for _ in range(4):
            net.forward_backward()
        net.forward("conv", "pool")
        net.forward_backward()
        net.backward()
        return [blob.cpu_diff().copy() for blob in net.learnable_params]

    check(make, run, MADE, "TRAIN", times=1 + 1)


def test_another_size_of_batch_has_it_recorded_anew(make):
    def run(net):
        return [net(images(count)) for count in (2, 2, 2, 2, 5, 5, 5, 5, 1)]

    check(make, run, times=2 + 1)


def test_data_that_comes_in_another_size_is_recorded_anew(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = [(12, 12)] * 5 + [(9, 15)] * 4
    for index, shape in enumerate(images):
        pixels = np.random.default_rng(index).integers(0, 256, (*shape, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"{index}.png")
    Path("list").write_text("".join(f"{i}.png {i % 3}\n" for i in range(len(images))))

    check(make, lambda net: [net.forward() for _ in images], IMAGES, times=3 + 1)


def test_arrays_of_the_device_stay_there(make):
    def run(net):
        backend = net.device.backend
        return [net(backend.xp.asarray(images(2, seed))) for seed in range(5)]

    check(make, run, times=3)


def test_batches_of_one_prediction(make):
    check(make, lambda net: [net.predict(images(11), batch_size=2)["prob"]], times=2)


def test_what_the_host_writes_counts(make):
    def run(net):
        found = [net(images(2)) for _ in range(4)]
        net.params["ip"][0].mutable_cpu_data()[...] = 0.25
        net.params["conv"][0].data[...] *= 0.5
        return [*found, net(images(2)), net(images(2))]

    check(make, run, times=4)


def test_a_moved_memory_has_it_recorded_anew(make):
    def run(net):
        found = [net(images(2)) for _ in range(4)]
        blob = net.params["ip"][0]
        blob.set_gpu_data(blob.gpu_data() * 2)
        return found + [net(images(2)) for _ in range(4)]

    check(make, run, times=2 + 2)


def test_callbacks_and_live_views_have_it_queued(make):
    seen = []

    def run(net):
        found = [net(images(2)) for _ in range(4)]
        net.after_forward.append(seen.append)
        found.append(net(images(2, 1)))
        net.after_forward.clear()
        view = net.blobs["pool"].data
        found.append(net(images(2, 2)))
        return [*found, view.copy()]

    check(make, run, times=2)
    assert len(seen) == 2 * 9


def test_buffers_that_blobs_share(make):
    def run(net):
        return [net(images(2, seed)) for seed in range(5)]

    got = run(make(keep_blobs="outputs"))
    with settings.override(cuda_graphs="off"):
        wanted = run(make(keep_blobs="outputs"))

    assert len(check.played) == 3
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_that_share_buffers(make):
    def run(net):
        found = []
        for _ in range(5):
            net.clear_param_diffs()
            found.append(net.forward_backward())
            found += [blob.cpu_diff().copy() for blob in net.learnable_params]
        return found

    check(make, run, MADE, "TRAIN", times=3, keep_blobs="outputs")


def test_another_size_of_batch_in_buffers_that_blobs_share(make):
    def run(net):
        return [net(images(count)) for count in (2,) * 4 + (5,) * 5 + (2,) * 4]

    sharing = run(make(keep_blobs="outputs"))
    with settings.override(cuda_graphs="off"):
        wanted = run(make(keep_blobs="outputs"))

    assert len(check.played) == 2 + 2 + 1
    for a, b in zip(sharing, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_net_that_moves_is_recorded_there(make):
    net = make()
    device = net.device

    first = [net(images(2)) for _ in range(4)]
    net.to("numpy")
    there = net(images(2))
    net.to(device)
    last = [net(images(2)) for _ in range(4)]

    np.testing.assert_allclose(there, first[0], rtol=1e-5)
    np.testing.assert_array_equal(last[3], first[0])
    assert len(check.played) == 4


@pytest.mark.parametrize("error", [NotRecorded("no"), DeviceError("no room")])
def test_a_device_that_cannot_goes_on_without(make, monkeypatch, caplog, error):
    def run(net):
        recorder = net.device.backend.recorder
        record = recorder.record

        def refuse(work):
            record(work)
            raise error

        monkeypatch.setattr(recorder, "record", refuse)
        losses = [net.forward() for _ in range(6)]
        return [*losses, *(blob.cpu_data().copy() for blob in net.params["bn"])]

    with caplog.at_level("INFO"):
        check(make, run, MADE, "TRAIN", times=0)

    assert caplog.text.count(f": {error}.") == 1


def test_an_interrupted_recording_leaves_everything_as_it_was(make, monkeypatch):
    def run(net):
        recorder = net.device.backend.recorder
        record = recorder.record

        def interrupted(work):
            record(work)
            raise KeyboardInterrupt

        losses = [net.forward() for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "record", interrupted)
            if settings.get("cuda_graphs") != "off":
                with pytest.raises(KeyboardInterrupt):
                    net.forward()
        losses += [net.forward() for _ in range(4)]
        return [*losses, *(blob.cpu_data().copy() for blob in net.params["bn"])]

    check(
        make, run, MADE.replace('type: "gaussian"', 'type: "constant" value: 2'), "TRAIN", times=4
    )


def test_gradients_of_a_failed_launch_are_refused(make, monkeypatch):
    net = make(MADE, "TRAIN")
    for _ in range(3):
        net.clear_param_diffs()
        net.forward_backward()
    net.clear_param_diffs()

    def fail(recording):
        raise DeviceError("no more")

    monkeypatch.setattr(type(check.played[-1]), "play", fail)
    with expect_error(DeviceError, mentions="no more"):
        net.forward_backward()

    with expect_error(NetError, ErrorCode.BAD_STATE):
        net.check_gradients()


def test_memory_of_recordings_counts(make):
    net = make(MADE, "TRAIN")
    with settings.override(cuda_graphs="off"):
        net.forward_backward()
        queued = net.memory_use

    for _ in range(3):
        net.forward_backward()

    recorded = sum(recording.nbytes for recording in set(check.played))
    assert net.plan.held >= recorded
    assert net.memory_use.scratch - queued.scratch >= recorded
