"""Libraries of extras that are not installed: one exit code, and the line that installs them."""

import sys
from pathlib import Path

import pytest

MISSING = {
    "onnx": ("export deploy.prototxt out.onnx --weights run_iter_20.caffemodel --check", "onnx"),
    "onnx import": ("import some.onnx", "onnx"),
    "onnx diff": ("diff deploy.prototxt some.onnx", "onnx"),
    "h5py": ("weights export run_iter_20.caffemodel out.h5", "hdf5"),
    "h5py state": ("train -solver h5.prototxt", "hdf5"),
    "h5py read": ("weights list some.h5", "hdf5"),
    "matplotlib": ("plot_training_log 6 out.png some.log", "plot"),
    "cv2": ("run model.toml some.mp4", "video"),
    "PIL": ("run model.toml some.png", "image"),
    "PIL list": ("convert_imageset ./ list.txt out_lmdb", "image"),
    "PIL draw": ("draw_net net.prototxt out.png", "image"),
    "torch": ("weights export run_iter_20.caffemodel out.pth", "torch"),
    "torch export": ("export deploy.prototxt out.py --weights run_iter_20.caffemodel --check",
                     "torch"),
    "torch diff": ("diff deploy.prototxt some.pt2 --trust", "torch"),
    "sklearn": ("example digits", "examples"),
    "tensorboardX": ("train -solver solver.prototxt --logger tensorboard:x", "tensorboard"),
    "wandb": ("train -solver solver.prototxt --logger wandb:x", "wandb"),
    "mlflow": ("train -solver solver.prototxt --logger mlflow:x", "mlflow"),
    "pytest_benchmark": ("bench deploy.prototxt --batches 1 --rounds 1 --seconds 0.01 --save b",
                         "bench"),
}  # fmt: skip


@pytest.fixture
def files(trained):
    """Files that the commands read."""
    for name in ("some.onnx", "some.pt2", "some.mp4", "some.png"):
        Path(name).write_bytes(b"none")
    Path("some.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    Path("list.txt").write_text("some.png 1\n")
    at = "I1126 04:19:52.662773 1 solver.py:1]"
    Path("some.log").write_text(f"{at} Solving x\n{at} Iteration 0, loss = 1\n")
    Path("model.toml").write_text(
        'format = 1\n[model]\nnet = "deploy.prototxt"\nweights = "run_iter_20.caffemodel"\n'
        'task = "classify"\n[preprocess]\nchannels = "gray"\n'
    )
    Path("h5.prototxt").write_text(Path("solver.prototxt").read_text() + "snapshot_format: HDF5")
    return trained


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", MISSING)
def test_a_library_that_is_not_installed(run, monkeypatch, name):
    command, extra = MISSING[name]
    library = name.partition(" ")[0]
    for module in [one for one in sys.modules if one.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, library, None)

    shown = run(command)

    assert shown.exit_code == 3
    assert f"pip install 'demitasse[{extra}]'" in shown.stderr.splitlines()[-1]
    assert shown.error.details["extra"] == extra
