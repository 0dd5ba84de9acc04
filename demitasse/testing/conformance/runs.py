"""Run one net on two devices and say where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from demitasse.core.device import Device
from demitasse.io.proto import NetParameter
from demitasse.net import Net
from demitasse.testing.differences import distance

__all__ = ["expect_same", "run", "run_on_both"]

REFERENCE = "numpy"
SEED = 3
PASSES = 2
"""The second pass finds what the first has left on the device."""

ALLOWED = {"float32": 1e-4, "float64": 1e-10}
"""Largest difference, over the largest value of an array; sums may run in another order."""

SMALLEST_SCALE = 0.1
"""The scale of arrays whose values are all smaller: they are what is left of larger ones that
cancel, as the gradient of a bias before a normalisation."""

Arrays = dict[str, np.ndarray]
Prepare = Callable[[Net], None]


def run_on_both(
    param: NetParameter,
    device: Device,
    dtype: str,
    inputs: Mapping[str, np.ndarray],
    phase: str = "TRAIN",
    prepare: Prepare | None = None,
) -> None:
    """Run a net on the device, and the portable code of all its layers on numpy; compare.

    Raises:
        AssertionError: Names the layer, the blob and by how much it is off.
    """
    want = run(param, REFERENCE, dtype, inputs, phase, prepare, lowered=False)
    got = run(param, device, dtype, inputs, phase, prepare)
    expect_same(got, want, dtype, device)


def run(
    param: NetParameter,
    device: str | Device,
    dtype: str,
    inputs: Mapping[str, np.ndarray],
    phase: str = "TRAIN",
    prepare: Prepare | None = None,
    *,
    lowered: bool = True,
) -> Arrays:
    """Make a net, run it forward and backward; return every array in the order of computation.

    Args:
        param: The net; gradients are computed where it has ``force_backward`` or a loss.
        device: Where it runs.
        dtype: What it computes in.
        inputs: A value for each input.
        phase: "TRAIN" or "TEST".
        prepare: Called with the net before its first pass.
        lowered: Whether the backend may lower operations.
    """
    with Net(param, phase, device=device, dtype=dtype, lowered=lowered, seed=SEED) as net:
        if prepare is not None:
            prepare(net)
        net.clear_param_diffs()
        for _ in range(PASSES):
            for name, value in inputs.items():
                net.blobs[name].data[...] = value
            net.forward()
            _give_gradients(net)
            net.backward()
        return _collected(net)


def expect_same(got: Arrays, want: Arrays, dtype: str, device: str | Device) -> None:
    """Compare what two runs computed.

    Raises:
        AssertionError: Names every array that differs, the first computed first.
    """
    wrong = []
    for key, expected in want.items():
        absolute, relative = distance(got[key], expected)
        if relative <= ALLOWED[dtype] or absolute <= ALLOWED[dtype] * SMALLEST_SCALE:
            continue
        if got[key].shape != expected.shape:
            wrong.append(f"{key}: shape {got[key].shape}, not {expected.shape}")
        else:
            wrong.append(f"{key}: {relative:.2e} relative, {absolute:.2e} absolute")
    assert not wrong, (
        f"{device} differs from {REFERENCE} in {dtype} (allowed {ALLOWED[dtype]:.0e} relative):\n  "
        + "\n  ".join(wrong)
    )


def _give_gradients(net: Net) -> None:
    """Set the gradients of outputs that are no loss, the same on every device."""
    rng = np.random.default_rng(SEED)
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    for name in net.outputs:
        blob = net.blobs[name]
        if not weights[name]:
            blob.diff[...] = rng.uniform(0.5, 1.5, blob.shape)


def _collected(net: Net) -> Arrays:
    """Return copies of all that a pass computes, by words that name layer and blob.

    Of a blob that several layers overwrite, the last value is the last layer's, and the last
    gradient the first layer's.
    """
    found: Arrays = {}
    names, blobs = net.blob_names, net.structure.blob_list
    wheres = [f"layer {layer.name!r} ({layer.type})" for layer in net.layers]
    writers = {top: where for i, where in enumerate(wheres) for top in net.structure.top_ids(i)}
    for top, where in writers.items():
        found[f"{where}, top {names[top]!r}"] = np.array(blobs[top].data)
    readers = {
        bottom: where
        for i, where in reversed(list(enumerate(wheres)))
        for bottom, need in zip(
            net.structure.bottom_ids(i), net.structure.bottom_need_backward[i], strict=True
        )
        if need and net.structure.layer_need_backward[i]
    }
    for bottom, where in readers.items():
        found[f"{where}, gradient of bottom {names[bottom]!r}"] = np.array(blobs[bottom].diff)
    for layer, where in zip(net.layers, wheres, strict=True):
        for index, blob in enumerate(layer.blobs):
            found[f"{where}, parameter {index} after the pass"] = np.array(blob.data)
            if layer.param_propagate_down(index):
                found[f"{where}, gradient of parameter {index}"] = np.array(blob.diff)
    return found
