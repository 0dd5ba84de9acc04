"""Batches of ImageData and HDF5Data that Caffe recorded."""

import numpy as np
import pytest

from demitasse import Net

CASES = ["hdf5", "image_gray_crop", "image_mean_scale", "image_resize"]


@pytest.mark.parametrize("name", CASES)
def test_batches_are_caffes(name, reference_data, monkeypatch, backend):
    folder = reference_data / "goldens_data"
    recorded = np.load(folder / f"{name}.npz")
    monkeypatch.chdir(reference_data)

    with Net(folder / f"{name}.prototxt", "TEST", device=backend) as net:
        for k in range(3):
            net.forward()

            for top in ("data", "label"):
                want = recorded[f"top{k}/{top}"]
                got = net.blobs[top].data[: len(want)]
                assert got.shape == want.shape
                # another JPEG decoder may give other grey levels here and there
                error = np.abs(got - want).mean() if top == "data" else np.abs(got - want).max()
                allowed = 4e-3 if top == "data" and name != "hdf5" else 1e-6
                assert error <= allowed * np.abs(want).max()
