"""The device `cpu`: kernels or numpy, private layouts, live views, threads."""

import logging
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from needs import needs
from nets import NETS
from zeros import fill_with_zeros

from demitasse import Net
from demitasse.backends import cpu
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.layout import channels_last, plain
from demitasse.backends.kernels.language import Status
from demitasse.blob import Blob
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import Head, SyncedMemory, transfers

here = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

CONVS = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 8 } } }
layer { name: "c1" type: "Convolution" bottom: "x" top: "c1"
  convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "relu" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "pool" type: "Pooling" bottom: "c1" top: "p" pooling_param { kernel_size: 2 } }
layer { name: "c2" type: "Convolution" bottom: "p" top: "c2"
  convolution_param { num_output: 32 kernel_size: 2 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "flat" type: "Flatten" bottom: "c2" top: "flat" }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "y"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.3 } } }
"""


def net(text=CONVS, phase="TRAIN", **options):
    made = Net(parse_text(text, NetParameter), phase, device="cpu", seed=3, **options)
    made.blobs["x"].mutable_cpu_data()[...] = np.random.default_rng(1).normal(
        size=made.blobs["x"].shape
    )
    return made


@pytest.fixture
def layout():
    """A layout of (2, 20, 3, 4) that is not C order and has padding."""
    found = channels_last((2, 20, 3, 4), 16)
    assert found.size > 2 * 20 * 3 * 4
    return found


@pytest.fixture
def values():
    return np.random.default_rng(2).normal(size=480).astype(np.float32)


# -- kernels or numpy -------------------------------------------------------------------------


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        text=True,
        capture_output=True,
        check=False,
    )


@needs("/proc")
def test_importing_demitasse_does_not_load_llvm():
    code = (
        "import demitasse, demitasse.backends.cpu; "
        "print('llvmlite' in open('/proc/self/maps').read())"
    )

    done = run(code)

    assert done.stdout.strip() == "False", done.stderr


def test_without_kernels_the_cpu_is_plain_numpy_and_a_user_who_said_so_is_not_warned():
    code = (
        "from demitasse.core.device import Device; from demitasse.backends.cpu import status; "
        "print(Device('cpu').backend.name, status().ready, status())"
    )

    done = run(code, DEMITASSE_JIT="0")

    assert done.stdout.split()[:2] == ["numpy", "False"], done.stderr
    assert "switched off" in done.stdout
    assert done.stderr == ""


def test_a_slow_device_is_warned_of_once(monkeypatch, caplog):
    monkeypatch.setattr(cpu, "status", lambda: Status(False, reason="llvmlite is not here"))
    cpu._warn.cache_clear()

    with caplog.at_level(logging.WARNING):
        kinds = [cpu.cpu_backend() for _ in range(2)]

    assert {kind.name for kind in kinds} == {Device("numpy").backend.name}
    [line] = caplog.messages
    assert line.startswith("slow path: ")
    assert "llvmlite is not here" in line


def test_a_processor_without_vectors_computes_with_numpy(monkeypatch):
    monkeypatch.setattr(cpu, "vector_width", lambda: 0)

    assert cpu.slow_reason()
    assert cpu.cpu_backend().name == "numpy"


@here
def test_status_says_version_and_processor():
    text = str(cpu.status())

    assert text.startswith("llvmlite ")
    assert cpu.status().processor in text
    assert Device("cpu").backend.name == "cpu"
    assert Device("numpy").backend.name == "numpy"


# -- the private side -------------------------------------------------------------------------


@here
def test_reading_the_private_side_of_host_data_reorders_once(layout, values):
    memory = SyncedMemory(480, "float32", Device("cpu"))
    memory.mutable_cpu_data()[...] = values
    transfers.reset()

    side = memory.private_data(layout)
    again = memory.private_data(layout)

    assert side is again
    assert memory.head is Head.SYNCED
    assert transfers.reorders == 1
    assert transfers.to_host == transfers.to_device == 0
    assert np.count_nonzero(side) == np.count_nonzero(values)  # padding is zero


@here
def test_what_a_step_writes_privately_is_read_on_the_host(layout, values):
    source = SyncedMemory(480, "float32", Device("cpu"))
    source.mutable_cpu_data()[...] = values
    memory = SyncedMemory(480, "float32", Device("cpu"))

    memory.mutable_private_data(layout)[...] = source.private_data(layout)

    assert memory.head is Head.HEAD_AT_GPU
    np.testing.assert_array_equal(memory.cpu_data(), values)
    assert memory.head is Head.SYNCED


@here
def test_writing_the_host_side_makes_the_private_side_stale(layout, values):
    memory = SyncedMemory(480, "float32", Device("cpu"))
    memory.mutable_private_data(layout)[...] = 0

    memory.mutable_cpu_data()[...] = values

    assert memory.layout is None
    side = memory.private_data(layout)
    assert side.sum() == pytest.approx(values.sum(), abs=1e-3)


@here
def test_a_reader_of_another_layout_is_sent_away(layout, values):
    memory = SyncedMemory(480, "float32", Device("cpu"))
    memory.mutable_private_data(layout)[...] = 0
    other = plain((480,))

    assert memory.private_data(other) is None
    assert memory.layout is layout


@here
def test_a_cleared_private_gradient_is_zero(layout):
    memory = SyncedMemory(480, "float32", Device("cpu"))
    memory.mutable_private_data(layout)[...] = 1

    memory.clear()

    assert memory.head is Head.UNINITIALIZED
    assert not memory.cpu_data().any()
    assert not memory.private_data(layout).any()


@here
def test_private_data_moves_to_another_device(layout, values):
    memory = SyncedMemory(480, "float32", Device("cpu"))
    memory.mutable_cpu_data()[...] = values
    memory.mutable_private_data(layout)[...] = memory.private_data(layout)

    memory.to(Device("strict:device1"))

    assert np.array_equal(Device("strict:device1").backend.to_host(memory.gpu_data()), values)


@here
def test_poison_shows_a_stale_host_side_and_spoils_no_result(layout, values):
    with settings.override(debug_fill_stale=True):
        memory = SyncedMemory(480, "float32", Device("cpu"))
        host = memory.mutable_cpu_data()
        host[...] = values
        memory.mutable_private_data(layout)[...] = 1
        poisoned = bool(np.isnan(host).all())
        planned, portable = net(), net(optimize=False)

    for each in (planned, portable):
        each.forward()
        each.blobs["y"].mutable_cpu_diff()[...] = 1
        each.backward()

    assert poisoned
    for name in planned.blobs:
        mine, theirs = planned.blobs[name], portable.blobs[name]
        np.testing.assert_allclose(mine.cpu_data(), theirs.cpu_data(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(mine.cpu_diff(), theirs.cpu_diff(), rtol=1e-4, atol=1e-4)


# -- nets -------------------------------------------------------------------------------------


@here
def test_data_stays_private_between_layers():
    one = net()
    one.forward()
    transfers.reset()

    one.blobs["x"].mutable_cpu_data()[...] = 1
    one.forward()

    # the input may be packed for the first layer; the inner product reads rows
    assert transfers.reorders <= 2
    assert one.blobs["c1"].data_memory.head is Head.HEAD_AT_GPU


@here
def test_a_live_view_shows_every_pass_and_what_is_written_into_it_counts():
    one, other = net(), net(optimize=False)
    for each in (one, other):
        each.forward()
    view = one.blobs["c1"].data
    part = view[0, 0]

    one.blobs["x"].data[...] = 2
    other.blobs["x"].data[...] = 2
    one.forward()
    other.forward()

    np.testing.assert_allclose(part, other.blobs["c1"].data[0, 0], rtol=1e-4, atol=1e-5)

    view[...] = 3  # what a script writes between the passes is what the next layer reads
    other.blobs["c1"].data[...] = 3
    one.forward(start="pool")
    other.forward(start="pool")

    np.testing.assert_allclose(one.blobs["y"].data, other.blobs["y"].data, rtol=1e-4, atol=1e-4)


@here
def test_changed_weights_are_packed_again():
    one, other = net(), net(optimize=False)
    for each in (one, other):
        each.forward()
        each.params["c2"][0].data[...] *= 2
        each.forward()

    np.testing.assert_allclose(one.blobs["y"].data, other.blobs["y"].data, rtol=1e-4, atol=1e-4)


@here
def test_gradients_add_up_over_passes():
    once, twice = net(), net()
    for each, passes in ((once, 1), (twice, 2)):
        each.clear_param_diffs()
        for _ in range(passes):
            each.forward()
            each.blobs["y"].mutable_cpu_diff()[...] = 1
            each.backward()

    for name, blobs in once.params.items():
        for mine, theirs in zip(blobs, twice.params[name], strict=True):
            np.testing.assert_allclose(2 * mine.diff, theirs.diff, rtol=1e-4, atol=1e-4)


@here
def test_a_blob_with_more_memory_than_it_needs():
    one, other = net(), net(optimize=False)
    for each in (one, other):
        each.forward()
        each.blobs["x"].reshape(1, 3, 9, 8)
        each.blobs["x"].mutable_cpu_data()[...] = 0.5
        each.forward()

    np.testing.assert_allclose(one.blobs["y"].data, other.blobs["y"].data, rtol=1e-4, atol=1e-4)


@here
def test_layers_that_may_run_as_one_run_apart_when_a_range_ends_between_them():
    one, other = net(), net(optimize=False)
    assert one.forward() == 0
    assert one.plan.entries[1].group is not None

    for each in (one, other):
        each.forward(end="c1")

    np.testing.assert_allclose(one.blobs["c1"].data, other.blobs["c1"].data, rtol=1e-4, atol=1e-5)
    assert (one.blobs["c1"].data < 0).any()


BATCH_NORM = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 6 dim: 5 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
  num_output: 16 kernel_size: 3 bias_term: false weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "bn" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "scale" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "y"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.3 } } }
"""


@here
def test_the_gradient_of_a_part_of_what_ran_as_one_is_that_of_the_layers_one_by_one():
    nets = net(BATCH_NORM), net(BATCH_NORM, optimize=False)
    for one in nets:
        one.clear_param_diffs()
        one.forward()
        one.blobs["y"].mutable_cpu_diff()[...] = 1
        one.backward(end="scale")

    for blobs in zip(*([n.blobs["c"], *n.params["scale"]] for n in nets), strict=True):
        part, whole = (blob.cpu_diff() for blob in blobs)
        assert whole.any()
        np.testing.assert_allclose(part, whole, rtol=1e-3, atol=1e-4)
    nets[0].forward()
    nets[0].backward(end="bn")


@here
def test_callbacks_around_backward_see_every_layer():
    one, other, seen = net(BATCH_NORM), net(BATCH_NORM, optimize=False), []
    one.after_backward.append(seen.append)
    for each in (one, other):
        each.clear_param_diffs()
        each.forward()
        each.blobs["y"].mutable_cpu_diff()[...] = 1
        each.backward()

    assert seen == list(reversed(range(len(one.layers))))
    np.testing.assert_allclose(
        one.params["c"][0].diff, other.params["c"][0].diff, rtol=1e-3, atol=1e-4
    )


@here
def test_two_nets_in_two_threads_give_the_bits_of_one_thread():
    def outputs(made):
        results = []
        for i in range(20):
            made.blobs["x"].mutable_cpu_data()[...] = np.float32(i) / 7
            made.clear_param_diffs()
            made.forward()
            made.blobs["y"].mutable_cpu_diff()[...] = 1
            made.backward()
            results += [np.array(made.blobs["y"].cpu_data())]
            results += [np.array(made.params["c1"][0].cpu_diff())]
        return results

    want = [outputs(net()), outputs(net(CONVS, "TEST"))]
    got: dict[int, list[np.ndarray]] = {}
    nets = [net(), net(CONVS, "TEST")]
    threads = [
        threading.Thread(target=lambda i=i: got.__setitem__(i, outputs(nets[i]))) for i in range(2)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for i in range(2):
        for mine, theirs in zip(got[i], want[i], strict=True):
            np.testing.assert_array_equal(mine, theirs)


@here
def test_blas_has_its_threads_back_after_a_pass():
    from demitasse.backends.numpy.products import blas

    before = [library.get_num_threads() for library in blas()]
    one = net()
    during = []
    one.after_forward.append(
        lambda _: during.append([library.get_num_threads() for library in blas()])
    )

    one.forward()

    assert all(threads == 1 for threads in during[-1])
    assert [library.get_num_threads() for library in blas()] == before


@here
def test_a_blob_shared_with_another_shape_goes_through_the_host():
    shaped, flat = Blob((2, 20, 3, 4), device="cpu"), Blob((480,), device="cpu")
    flat.share_data(shaped)
    one, other = net(), net(optimize=False)

    for each in (one, other):
        each.forward()

    np.testing.assert_allclose(
        one.blobs["flat"].data, other.blobs["flat"].data, rtol=1e-4, atol=1e-4
    )


ZOO = [(name, 2) for name in NETS] + [("googlenet", 8)]


@here
@pytest.mark.parametrize(("name", "batch"), ZOO)
@pytest.mark.parametrize("training", [False, True], ids=["forward", "both ways"])
def test_every_layer_of_the_zoo_runs_in_kernels(name, batch, training, monkeypatch):
    fill_with_zeros(monkeypatch)  # what runs does not depend on values
    param = parse_text(NETS[name](batch, training), NetParameter)

    made = Net(param, "TRAIN" if training else "TEST", device="cpu", seed=1)
    made.reshape()

    steps = dict(zip(made.layer_names, made.plan.steps(), strict=True))
    portable = {made.layer_by_name(n).type for n, step in steps.items() if step is None}
    assert portable <= {"Input", "Dropout", "Flatten"}
    fused = {e.layer.name: e.group.step for e in made.plan.entries if e.group}
    for name_of, step in [*steps.items(), *fused.items()]:
        assert step is None or "cpu" in type(step).__module__, name_of
        codes = "" if step is None else step.code
        if step is not None and made.layer_by_name(name_of).type != "SoftmaxWithLoss":
            codes += step.backward_code
        assert "numpy" not in codes, name_of


@here
def test_the_only_channel_of_an_image_is_not_padded_to_a_block():
    text = """
    layer { name: "x" type: "Input" top: "x"
      input_param { shape { dim: 4 dim: 1 dim: 12 dim: 12 } } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" loss_weight: 1
      convolution_param { num_output: 20 kernel_size: 5 } }"""
    made = Net(parse_text(text, NetParameter), "TRAIN", device="cpu")
    made.reshape()

    step = made.plan.steps()[1]

    readers = [call.arguments[0] for call in (*step.forward_calls, *step.backward_calls)]
    assert [argument.layout.size for argument in readers] == [4 * 12 * 12] * 2


@here
def test_a_weight_that_is_learned_is_not_converted_in_every_step():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 16 dim: 120 } } }
    layer { name: "h" type: "InnerProduct" bottom: "x" top: "h"
      inner_product_param { num_output: 100 } }
    layer { name: "y" type: "InnerProduct" bottom: "h" top: "y" loss_weight: 1
      inner_product_param { num_output: 100 } }"""
    made = Net(parse_text(text, NetParameter), "TRAIN", device="cpu")
    made.reshape()

    step = made.plan.steps()[2]

    weight = made.layer_by_name("y").blobs[0]
    calls = (*step.forward_calls, *step.backward_calls)
    layouts = {one.layout for call in calls for one in call.arguments if one.blob is weight}
    assert len(layouts) == 1


TRAINED = """
net_param {
  layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 8 dim: 30 } } }
  layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 8 } } }
  layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "h"
    inner_product_param { num_output: 64 weight_filler { type: "gaussian" std: 0.3 } } }
  layer { name: "ip2" type: "InnerProduct" bottom: "h" top: "y"
    inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.3 } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
}
base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 max_iter: 9 random_seed: 4
"""


@here
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_weights_in_private_layouts_are_trained_as_in_c_order(kind):
    from demitasse import Solver
    from demitasse.io.proto import SolverParameter

    def trained(optimize):
        param = parse_text(f'{TRAINED} type: "{kind}" display: 0', SolverParameter)
        solver = Solver(param, device="cpu", optimize=optimize)
        rng = np.random.default_rng(6)
        solver.net.blobs["x"].mutable_cpu_data()[...] = rng.normal(size=(8, 30))
        solver.net.blobs["label"].mutable_cpu_data()[...] = rng.integers(0, 5, 8)
        for _ in range(4):
            solver.step(1)
        return solver

    mine, theirs = trained(optimize=True), trained(optimize=False)

    for got, want in zip(mine.history.arrays(), theirs.history.arrays(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    for got, want in zip(
        mine.net.structure.params_list, theirs.net.structure.params_list, strict=True
    ):
        np.testing.assert_allclose(got.data, want.data, rtol=1e-3, atol=1e-5)
