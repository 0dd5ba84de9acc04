"""Comparison of a net on the tested device with portable code on numpy."""

from collections.abc import Callable, Mapping

import numpy as np

from demitasse.core.device import Device
from demitasse.io.proto import NetParameter
from demitasse.net import Net
from demitasse.testing.error_stats import RTOL, error_stats

REFERENCE = "numpy"
SEED = 3
PASSES = 2  # two, as the first pass can leave wrong state on the device

SMALLEST_SCALE = 0.1
"""Smallest scale of an array. Arrays of smaller values are results of cancellation, e.g. the
gradient of a bias before a normalization."""

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
    """Compare a net on the device with the portable code of its layers on numpy."""
    want = run(param, REFERENCE, dtype, inputs, phase, prepare, optimize=False)
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
    optimize: bool = True,
) -> Arrays:
    """Run a net forward and backward; return every array in the order of computation.

    The net needs ``force_backward`` or a loss for gradients. ``prepare`` is called before the first
    pass; with ``optimize`` the backend may lower operations.
    """
    with Net(param, phase, device=device, dtype=dtype, optimize=optimize, seed=SEED) as net:
        if prepare is not None:
            prepare(net)
        net.clear_param_diffs()
        for _ in range(PASSES):
            for name, value in inputs.items():
                net.blobs[name].data[...] = value
            net.forward()
            _give_gradients(net)
            net.backward(-1)
        return _collected(net)


def expect_same(got: Arrays, want: Arrays, dtype: str, device: str | Device) -> None:
    """Compare the arrays of two runs; name all that differ in the order of computation."""
    wrong = []
    for key, expected in want.items():
        stats = error_stats(got[key], expected)
        if stats.relative <= RTOL[dtype] or stats.absolute <= RTOL[dtype] * SMALLEST_SCALE:
            continue
        if got[key].shape != expected.shape:
            wrong.append(f"{key}: got shape {got[key].shape}, expected {expected.shape}")
        else:
            wrong.append(f"{key}: {stats.relative:.2e} relative, {stats.absolute:.2e} absolute")
    assert not wrong, (
        f"{device} differs from {REFERENCE} in {dtype} (tolerance {RTOL[dtype]:.0e}):\n  "
        + "\n  ".join(wrong)
    )


def _give_gradients(net: Net) -> None:
    """Set the gradients of outputs that are no loss to the same values on every device."""
    rng = np.random.default_rng(SEED)
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    for name in net.outputs:
        blob = net.blobs[name]
        if not weights[name]:
            blob.diff[...] = rng.uniform(0.5, 1.5, blob.shape)


def _collected(net: Net) -> Arrays:
    """Return copies of all arrays of a pass, by description of layer and blob.

    The value of a blob that several layers write belongs to the last of them, its gradient to the
    first.
    """
    found: Arrays = {}
    bindings = net.structure.bindings()
    tops = {blob: at.label for at in bindings for blob in at.top}
    for blob, where in tops.items():
        found[f"{where}, top {blob.name!r}"] = np.array(blob.data)
    bottoms = {
        blob: at.label
        for at in reversed(bindings)
        for blob, wanted in zip(at.bottom, at.propagate_down, strict=True)
        if at.backward and wanted
    }
    for blob, where in bottoms.items():
        found[f"{where}, gradient of bottom {blob.name!r}"] = np.array(blob.diff)
    for at in bindings:
        for index, blob in enumerate(at.layer.blobs):
            found[f"{at.label}, parameter {index} after the pass"] = np.array(blob.data)
            if at.layer.param_propagate_down(index):
                found[f"{at.label}, gradient of parameter {index}"] = np.array(blob.diff)
    return found
