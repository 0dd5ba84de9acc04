"""A small net with every layer lowered, against the same net in portable code."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.convolutions import IgemmKernels
from demitasse.backends.cpu.engine import engine
from demitasse.backends.cpu.kernel_calls import PackedKernel
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

SEED = 5

NEEDS_KERNELS = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())
"""Mark of tests of the kernels that are made at run time."""

WIDTHS = (8, 16)
"""Floats of the kernels' vectors. LLVM splits those that the processor has no registers for."""


@contextmanager
def tuned(**changes):
    """Make kernels by another tuning; its threads come from the settings."""
    before = engine().tuning
    engine().tuning = replace(before, **changes)
    try:
        yield engine().tuning
    finally:
        engine().tuning = before


def our_kernels(width):
    """Run each convolution that has a kernel of its own in that kernel, whatever it costs."""
    return tuned(width=width, always=frozenset(("winograd",)))


def build(text, phase="TRAIN", device="cpu", **options):
    param = parse_text(text, NetParameter)
    net = Net(param, phase, device=device, seed=SEED, **options)
    rng = np.random.default_rng(SEED)
    for name, blobs in net.params.items():
        del name
        for blob in blobs:
            blob.data[...] = rng.uniform(0.5, 1.5, blob.shape)
    for name in net.inputs:
        blob = net.blobs[name]
        whole = name == "label"
        blob.data[...] = rng.integers(0, 3, blob.shape) if whole else rng.normal(size=blob.shape)
    return net


def run(net, passes=2):
    """Forward and backward; the second pass adds to the parameters' gradients."""
    net.clear_param_diffs()
    for _ in range(passes):
        net.forward()
        rng = np.random.default_rng(SEED + 1)
        for name in net.outputs:
            if name != "loss":
                net.blobs[name].diff[...] = rng.normal(size=net.blobs[name].shape)
        net.backward()
    data = {name: np.array(blob.data) for name, blob in net.blobs.items()}
    diff = {f"d {name}": np.array(blob.diff) for name, blob in net.blobs.items()}
    grads = {
        f"d {name}[{i}]": np.array(blob.diff)
        for name, blobs in net.params.items()
        for i, blob in enumerate(blobs)
    }
    params = {
        f"{name}[{i}]": np.array(blob.data)
        for name, blobs in net.params.items()
        for i, blob in enumerate(blobs)
    }
    return data | diff | grads | params


def expect_same(text, optimize=(), phase="TRAIN", rtol=2e-5):
    """Return the planned net, which gives what the portable one gives.

    The named layers are lowered.
    """
    planned, portable = build(text, phase), build(text, phase, optimize=False)

    got, want = run(planned), run(portable)

    for key, value in want.items():
        known = ~np.isnan(value)  # the mean of no element is no number
        assert np.array_equal(np.isnan(got[key]), ~known), key
        scale = max(1e-3, np.abs(value[known]).max(initial=0))
        assert np.abs(got[key] - value)[known].max(initial=0) <= rtol * scale, key
    steps = dict(zip(planned.layer_names, planned.plan.steps(), strict=True))
    for name in optimize:
        assert "cpu" in type(steps[name]).__module__, f"{name} is not lowered"
    return planned


def expect_same_outputs(text, *, rtol, passes=1, scaled_in=None):
    """Expect what a net that keeps its outputs alone computes without a plan.

    Parameters are multiplied by 1.5 before the pass ``scaled_in``; None for no pass.
    """
    fast = build(text, "TEST", keep_blobs="outputs")
    plain = build(text, "TEST", optimize=False)
    for number in range(passes):
        image = np.random.default_rng(number).normal(size=fast.blobs["x"].shape)
        for each in (fast, plain):
            each.blobs["x"].data[...] = image
            if number == scaled_in:
                for blob in each.learnable_params:
                    blob.data *= 1.5
            each.forward()
        for name in fast.outputs:
            want = plain.blobs[name].data
            difference = np.abs(fast.blobs[name].data - want).max()
            assert difference <= rtol * np.abs(want).max(), name
    return fast


def report_of(planned, name="c"):
    """The report of a layer."""
    [found] = [one for one in report(planned.plan) if one.name == name]
    return found


def net(*layers, shape=(2, 3, 7, 6), label=None):
    dims = " ".join(f"dim: {d}" for d in shape)
    inputs = [f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}']
    if label is not None:
        dims = " ".join(f"dim: {d}" for d in label)
        inputs.append(
            f'layer {{ name: "label" type: "Input" top: "label" '
            f"input_param {{ shape {{ {dims} }} }} }}"
        )
    return "\n".join(["force_backward: true", *inputs, *layers])


def layer(name, kind, bottom, top, param=""):
    bottoms = " ".join(f'bottom: "{b}"' for b in bottom.split())
    tops = " ".join(f'top: "{t}"' for t in top.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} {tops} {param} }}'


def conv(m, rest="kernel_size: 3 pad: 1", bottom="x", name="c"):
    return layer(
        name, "Convolution", bottom, name, f"convolution_param {{ num_output: {m} {rest} }}"
    )


def kernels(planned, name="c"):
    """The names of the kernels that a layer's Step runs, or that of the group it begins."""
    entry = planned.plan.entries[planned.layer_names.index(name)]
    step = entry.group.step if entry.group else entry.step
    found = [call.kernel for call in (*step.forward_calls, *step.backward_calls)]
    return [type(one.kernel if isinstance(one, PackedKernel) else one).__name__ for one in found]


RELU = layer("r", "ReLU", "c", "c")
POOL = layer("p", "Pooling", "c", "p", "pooling_param { kernel_size: 2 stride: 2 }")
ENDS = {"nothing": [], "ReLU": [RELU], "ReLU, MAX": [RELU, POOL], "MAX": [POOL]}
"""What may follow the convolution 'c'."""


def taken_by_rows(planned, index):
    """Return whether the first kernels of a convolution take images by their rows."""
    step = planned.plan.entries[index].step
    first = step.kernels[0] if isinstance(step, ConvStep) else None
    return isinstance(first, IgemmKernels) and first.by_rows


def outputs_with(value, place, text):
    """Return what a net and its portable code give where one number of it is ``value``.

    Args:
        value: The number.
        place: "x" for one of the input, 0 or 1 for one of that parameter of the layer 'c'.
        text: The net.
    """
    both = []
    for options in ({"keep_blobs": "outputs"}, {"optimize": False}):
        net = build(text, "TEST", **options)
        blob = net.blobs["x"] if place == "x" else net.params["c"][place]
        blob.data.reshape(-1)[blob.count // 2] = value
        net.forward()
        both.append(np.array(net.blobs[net.outputs[0]].data))
    return both
