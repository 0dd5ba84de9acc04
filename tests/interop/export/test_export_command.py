"""``demitasse export``, to ONNX and to PyTorch."""

import json
from pathlib import Path

import numpy as np
import pytest
from exporting import message, write_net
from exporting import run_cli as run

from demitasse.io.proto import text_of

LAYERS = """
name: "two"
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 5 } }
"""
INPUTS = {"data": (2, 3, 6, 6)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with net.prototxt and net.caffemodel."""
    monkeypatch.chdir(tmp_path)
    write_net(LAYERS, INPUTS)
    return tmp_path


@pytest.fixture
def runtime():
    """Skip where the libraries of ONNX are not installed."""
    pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")


EXPORT = "export net.prototxt net.onnx --weights net.caffemodel"
TO_TORCH = "export net.prototxt net.py --weights net.caffemodel --to torch"


def test_a_file_is_written_and_checked(folder, runtime):
    result = run(f"{EXPORT} --check")

    assert result.exit_code == 0, result.output
    assert "net.onnx" in result.stdout
    assert "17" in result.stdout
    assert "batch x 3 x 6 x 6" in result.stdout
    assert "0.0001" in result.stdout
    assert (folder / "net.onnx").exists()


def test_what_was_written_as_json(folder, runtime):
    result = run(f"{EXPORT} --json --check --outputs conv --batch 3 --opset 18")

    found = json.loads(result.stdout)
    assert found["inputs"] == {"data": [3, 3, 6, 6]}
    assert list(found["outputs"]) == ["ip", "conv"]
    assert found["opset"] == 18
    assert found["check"]["agree"] is True


def test_a_difference_ends_with_1_and_says_where(folder, runtime):
    result = run(f"{EXPORT} --check --rtol 1e-12")

    assert result.exit_code == 1
    assert "1e-12" in result.stdout


def test_images_are_prepared_in_the_file(folder, runtime):
    np.save("mean.npy", np.ones((3, 8, 8), np.float32))

    for mean in ("104,117,123", "128", "mean.npy"):
        result = run(f"{EXPORT} --check --mean {mean} --scale 0.017 --bgr --uint8")

        assert result.exit_code == 0, result.output


def test_inputs_that_are_given(folder, runtime):
    np.savez("inputs.npz", data=np.ones((3, 3, 6, 6), np.float32))

    result = run(f"{EXPORT} --check --inputs inputs.npz --details")

    assert result.exit_code == 0, result.output
    assert "output 'ip', fused layers, larger input" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("export net.prototxt net.pb", ".onnx"),
        ("export net.prototxt net.onnx --to torch", ".py"),
        ("export net.prototxt net.py --opset 17 --bgr", "--opset, --bgr"),
        (f"{EXPORT} --batch none", "'none'"),
        (f"{EXPORT} --batch ²", "'²'"),
        (f"{EXPORT} --shape data", "'data'"),
        (f"{EXPORT} --shape data=²,4", "'data=²,4'"),
    ],
)
def test_wrong_usage_ends_with_2(args, words, folder, runtime):
    result = run(args)

    assert result.exit_code == 2
    assert words in result.stderr


def test_what_cannot_be_exported_is_listed_and_nothing_is_written(folder, runtime):
    more = """layer { name: "mine" type: "Python" bottom: "ip" top: "mine"
      python_param { module: "nowhere" layer: "Mine" } }"""
    Path("net.prototxt").write_text(text_of(message(LAYERS + more, INPUTS)))

    result = run(EXPORT)

    assert result.exit_code != 0
    assert "layer 'mine' (Python)" in result.stderr
    assert not Path("net.onnx").exists()

    assert run(f"{EXPORT} --outputs ip --only --check").exit_code == 0


def test_a_module_and_its_weights_are_written(folder):
    result = run(TO_TORCH)

    assert result.exit_code == 0, result.output
    assert "net.py" in result.stdout
    assert "net.safetensors" in result.stdout
    assert "batch x 3 x 6 x 6" in result.stdout
    assert (folder / "net.py").exists()
    assert (folder / "net.safetensors").exists()


def test_the_module_is_checked(folder):
    pytest.importorskip("torch", reason="needs torch: nox -s frameworks")

    result = run(f"{TO_TORCH} --check --json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["check"]["agree"] is True
