"""NaN and infinity in the input of published nets: every device's outputs have them alike.

LeNet is not among them: MAX pooling makes the lowest float of a window that is all NaN, as in
Caffe, and the convolution after it overflows with that, by Winograd's algorithm sooner than in a
plain sum.

Winograd's algorithm spreads them over a tile of outputs, and which convolutions run by it depends
on the processor's vectors: where one does, our outputs hold all those of numpy, and perhaps more.
"""

import json

import numpy as np
import pytest

from demitasse.net import Net
from demitasse.plan.report import report

NETS = ["cifar10_quick_v1", "resnet20_cifar10_aug", "mtcnn_det2",
        "vanillacnn_landmark", "openmv_smile", "ultralight_rfb320_heads"]  # fmt: skip


def outputs(folder, name, device, value):
    """Return all outputs of a net with one value of its input replaced, and whether tiles ran."""
    entry = json.loads((folder / "refs/index.json").read_text())[name]
    models, rng = folder / "models", np.random.default_rng(1)
    with Net(
        models / entry["net"], "TEST", weights=models / entry["weights"], device=device
    ) as net:
        for key, given in np.load(folder / "refs" / name / "input.npz").items():
            array = np.array(given)
            if array.dtype.kind == "f" and array.ndim > 1:
                array.flat[rng.integers(array.size)] = value
            net.set_input(key, array)
        net.forward()
        tiles = any("winograd" in layer.code for layer in report(net.plan))
        return {key: np.array(net.blobs[key].cpu_data()) for key in net.outputs}, tiles


@pytest.mark.parametrize(
    "value", [np.nan, np.inf, pytest.param(-np.inf, marks=pytest.mark.exhaustive)], ids=str
)
@pytest.mark.parametrize("name", NETS)
def test_what_is_no_number_is_where_it_is_on_numpy(name, value, reference_data, backend_with_steps):
    expected, _ = outputs(reference_data, name, "numpy", value)

    found, tiles = outputs(reference_data, name, backend_with_steps, value)

    # what becomes of infinity, itself or NaN, depends on what is summed or multiplied first
    lost = np.isnan if np.isnan(value) else lambda array: ~np.isfinite(array)
    for key, array in expected.items():
        wanted = lost(array)
        ours = lost(found[key]) & wanted if tiles else lost(found[key])
        np.testing.assert_array_equal(ours, wanted, err_msg=key)
