"""Copies in other forms: one buffer for all that change, their own for those that stay."""

import numpy as np
import pytest

from demitasse import Blob, Net, Solver
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.arguments import DerivedArg, InputArg
from demitasse.backends.cpu.engine import engine
from demitasse.backends.cpu.layout import plain
from demitasse.core.config import settings
from demitasse.io.proto import NetParameter, SolverParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

SIZE = 100


def doubled(target, values):
    target[...] = values * 2


@pytest.fixture
def source():
    blob = Blob((SIZE,), device="cpu")
    blob.mutable_cpu_data()[...] = 1
    return InputArg(blob, plain((SIZE,)))


def derived(source, make=doubled, **options):
    return DerivedArg(engine(), source.layout, make, source, **options)


def in_a_call(copy):
    """Return the array of the only argument of a call."""
    engine().begin_call()
    return copy.array()


def test_what_has_changed_each_time_takes_no_memory_of_its_own(source):
    copy, another = derived(source), derived(source)

    first = in_a_call(copy)
    second = in_a_call(another)
    source.memory.mutable_cpu_data()[...] = 3
    third = in_a_call(copy)

    assert np.shares_memory(first, second)
    assert np.shares_memory(first, third)
    assert (third == 6).all()
    assert copy.copied == another.copied == 0


def test_arguments_of_a_call_have_memories_apart(source):
    one, other = derived(source), derived(source)
    engine().begin_call()

    assert not np.shares_memory(one.array(), other.array())


def test_what_is_asked_for_twice_unchanged_gets_memory_of_its_own(source):
    copy, another = derived(source), derived(source)
    copy.array()

    own = copy.array()
    shared = another.array()

    assert not np.shares_memory(own, shared)
    assert copy.copied == own.nbytes
    assert copy.array() is own


def test_memory_of_its_own_follows_later_changes(source):
    copy = derived(source, kept=True)
    copy.array()

    source.memory.mutable_cpu_data()[...] = 4

    assert (copy.array() == 8).all()


def test_a_copy_that_was_cut_short_is_made_again(source):
    left = [KeyboardInterrupt, None]

    def make(target, values):
        if len(left) > 1:
            raise left.pop(0)
        doubled(target, values)

    copy = derived(source, make, kept=True)
    with pytest.raises(KeyboardInterrupt):
        copy.array()

    assert (copy.array() == 2).all()


SOLVER = """
base_lr: 0.01 lr_policy: "fixed" random_seed: 3 snapshot_after_train: false
net_param {
  layer { name: "x" type: "DummyData" top: "x" dummy_data_param {
    shape { dim: 4 dim: 64 dim: 28 dim: 28 } data_filler { type: "gaussian" } } }
  layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
    num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
  layer { name: "conv2" type: "Convolution" bottom: "conv" top: "conv2" convolution_param {
    num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
  layer { name: "mean" type: "Reduction" bottom: "conv2" top: "mean" loss_weight: 1
    reduction_param { operation: SUMSQ } }
}
"""


def test_training_keeps_no_weights_in_other_forms_than_those_it_updates():
    with Solver(parse_text(SOLVER, SolverParameter), device="cpu") as solver:
        solver.step(3)

        convs = {e.layer.name: e for e in solver.net.plan.entries if e.layer.type == "Convolution"}

    assert all("winograd" in conv.step.code for conv in convs.values())
    assert {name: conv.workspace for name, conv in convs.items()} == {"conv": 0, "conv2": 0}


def test_kernels_are_not_made_for_a_step_that_another_takes_the_place_of():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param {
      shape { dim: 1 dim: 64 dim: 28 dim: 28 } } }
    layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
      num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
    layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
    """
    net = Net(parse_text(text, NetParameter), "TEST", device="cpu")

    net.forward()

    conv = next(entry for entry in net.plan.entries if entry.layer.name == "conv")
    [alone], [fused] = conv.step.forward_calls, conv.group.step.forward_calls
    assert "winograd" in alone.code
    assert fused.kernel._kernel is not None
    assert alone.kernel._kernel is None


@pytest.mark.parametrize("kind", ["winograd", "igemm", "direct", "separable"])
def test_folded_weights_follow_changes_in_replayed_passes(kind):
    channels = 3 if kind == "direct" else 64
    windows = {"igemm": "kernel_size: 1", "separable": "kernel_size: 3 pad: 1 group: 64"}
    rest = windows.get(kind, "kernel_size: 3 pad: 1")
    layers = [("c", "x", rest)]
    if kind == "separable":
        layers = [("a", "x", "kernel_size: 1"), ("c", "a", rest), ("d", "c", "kernel_size: 1")]
    text = f"""
    layer {{ name: "x" type: "Input" top: "x" input_param {{
      shape {{ dim: 1 dim: {channels} dim: 56 dim: 56 }} }} }}"""
    for name, bottom, param in layers:
        text += f"""
    layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
      convolution_param {{ num_output: 64 {param} weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "{name}_n" type: "BatchNorm" bottom: "{name}" top: "{name}" }}
    layer {{ name: "{name}_s" type: "Scale" bottom: "{name}" top: "{name}"
      scale_param {{ bias_term: true filler {{ type: "uniform" min: 0.5 max: 2 }} }} }}
    layer {{ name: "{name}_r" type: "ReLU" bottom: "{name}" top: "{name}" }}"""
    param = parse_text(text, NetParameter)
    fast = Net(param, "TEST", device="cpu", seed=1, keep_blobs="outputs")
    plain = Net(param, "TEST", device="cpu", seed=1, optimize=False)
    for net in (fast, plain):
        net.blobs["x"].data[...] = np.random.default_rng(0).normal(size=net.blobs["x"].shape)
        for blobs in net.params.values():
            if len(blobs) == 3:
                for blob, value in zip(blobs, (0.1, 2.0, 1.0), strict=True):
                    blob.data[...] = value

    for factor in (1, 1, 1, 2, 0.5, 2, 0.5, 2, 3, 3, 3, 0.1):
        for net in (fast, plain):
            for name in ("c_s", "c"):
                blob = net.params[name][0]
                blob.mutable_cpu_data()[...] *= factor
            net.forward()
        want = plain.blobs[layers[-1][0]].cpu_data()
        got = fast.blobs[layers[-1][0]].cpu_data()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())

    assert kind in fast.plan.entries[fast.layer_names.index("c")].group.step.code


def test_a_blob_is_read_after_kernels_are_switched_off():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param {
      shape { dim: 1 dim: 16 dim: 9 dim: 7 } } }
    layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
      num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }"""
    x = np.random.default_rng(5).normal(size=(1, 16, 9, 7)).astype(np.float32)
    net = Net(parse_text(text, NetParameter), "TEST", device="cpu", seed=1)
    expected = np.tensordot(net.params["conv"][0].data[..., 0, 0], x[0], 1)
    net.blobs["x"].data = x
    net.forward()

    with settings.override(jit=False):
        found = net.blobs["conv"].data.copy()

    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)
