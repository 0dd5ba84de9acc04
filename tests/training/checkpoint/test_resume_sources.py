"""Whatever draws random numbers or reads records goes on, after a resume, where it was."""

import numpy as np
import pytest

from demitasse import Solver

IP = """
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""
IMAGES = """
layer { name: "d" type: "ImageData" top: "x" top: "y"
  image_data_param { source: "list.txt" batch_size: 5 new_height: 12 new_width: 12 MORE }
  transform_param { scale: 0.01 TRANSFORM } }
"""
NETS = {
    "images in random order": IMAGES.replace("MORE", "shuffle: true rand_skip: 7").replace(
        "TRANSFORM", "crop_size: 9 mirror: true"
    )
    + IP,
    "colours changed at random": IMAGES.replace("MORE", "shuffle: true").replace(
        "TRANSFORM",
        "distort_param { brightness_prob: 0.5 brightness_delta: 32 hue_prob: 0.5 hue_delta: 18 "
        "random_order_prob: 0.5 } noise_param { prob: 0.5 gauss_blur: true }",
    )
    + IP,
    "stochastic pooling": IMAGES.replace("MORE", "").replace("TRANSFORM", "")
    + """layer { name: "p" type: "Pooling" bottom: "x" top: "p"
      pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 } }"""
    + IP.replace('bottom: "x"', 'bottom: "p"'),
    "windows": """layer { name: "d" type: "WindowData" top: "x" top: "y"
      window_data_param { source: "windows.txt" batch_size: 6 fg_threshold: 0.5
        bg_threshold: 0.5 fg_fraction: 0.4 context_pad: 2 }
      transform_param { crop_size: 11 mirror: true scale: 0.01 } }"""
    + IP,
    "rows in random order": """layer { name: "d" type: "HDF5Data" top: "x" top: "y"
      hdf5_data_param { source: "files.txt" batch_size: 4 shuffle: true } }"""
    + IP,
    "label images": """layer { name: "d" type: "ImageSegData" top: "x" top: "y"
      image_data_param { source: "labels.txt" batch_size: 1 shuffle: true label_type: PIXEL }
      transform_param { mirror: true crop_size: 9 scale: 0.01 } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c"
      convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "c" bottom: "y" top: "loss" }""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Thirteen images with label images, lists of them, and two files of rows."""
    h5py, image = pytest.importorskip("h5py"), pytest.importorskip("PIL.Image")
    where, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    for i in range(13):
        image.fromarray(rng.integers(0, 256, (16, 20, 3), np.uint8)).save(where / f"p{i}.png")
        image.fromarray(rng.integers(0, 3, (16, 20), np.uint8)).save(where / f"l{i}.png")
    for i, count in enumerate((7, 8)):
        with h5py.File(where / f"{i}.h5", "w") as file:
            file["x"] = rng.normal(size=(count, 5)).astype(np.float32)
            file["y"] = rng.integers(0, 3, count).astype(np.float32)
    window = "# {0}\n{1}/p{0}.png\n3\n16\n20\n2\n1 0.9 1 1 12 12\n0 0.1 5 5 18 14\n"
    lists = {
        "list.txt": "".join(f"p{i}.png {i % 3}\n" for i in range(13)),
        "labels.txt": "".join(f"p{i}.png l{i}.png\n" for i in range(13)),
        "windows.txt": "".join(window.format(i, where) for i in range(13)),
        "files.txt": "0.h5\n1.h5\n",
    }
    for name, text in lists.items():
        (where / name).write_text(text)
    return where


def values(solver):
    return [blob.cpu_data().tobytes() for blob in solver.net.structure.params_list]


@pytest.mark.parametrize("name", NETS)
def test_it_goes_on_exactly(fields, folder, tmp_path, name, backend, monkeypatch):
    monkeypatch.chdir(folder)  # lists name files beside them

    def made(seed):
        param = fields("iter_size: 2 average_loss: 5", net=NETS[name], random_seed=seed)
        return Solver(param, device=backend)

    with made(7) as whole, made(8) as second:
        whole.step(4)
        _, state = whole.snapshot(tmp_path / "s")
        before = values(whole)
        whole.step(3)

        second.restore(state)
        second.step(3)

        assert values(second) == values(whole) != before
        assert second.smoothed_loss == whole.smoothed_loss
