"""The page about exporting is followed, each section where its libraries are installed."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from demitasse.cli.root import cli

PAGE = Path(__file__).resolve().parents[2] / "docs/export.md"


@pytest.fixture
def beside_digits(digits_run, tmp_path, monkeypatch):
    """Work in a folder that holds the finished example as ``digits``."""
    shutil.copytree(digits_run.folder, tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("digits_torch", None)


def blocks(*sections):
    """Language and content of the blocks of some sections; "" is what comes before the first."""
    parts = re.split(r"^## (.*)\n", "\n" + PAGE.read_text(), flags=re.M)
    texts = dict(zip(["", *parts[1::2]], parts[::2], strict=True))
    return [
        block
        for section in sections
        for block in re.findall(r"^```(\w+)\n(.*?)^```$", texts[section], re.DOTALL | re.M)
    ]


def follow(some):
    """Run blocks one after the other; return the names that Python has then."""
    names: dict[str, object] = {}
    for kind, content in some:
        if kind == "python":
            exec(compile(content, PAGE.name, "exec"), names)
        for line in content.splitlines() if kind == "bash" else ():
            assert CliRunner().invoke(cli, line.split()[1:]).exit_code == 0, line
    return names


def need(*libraries):
    for name in libraries:
        pytest.importorskip(name, reason=f"needs {name}: nox -s frameworks")


@pytest.mark.usefixtures("beside_digits")
def test_onnx():
    need("onnx", "onnxruntime")

    names = follow(blocks("", "What is in the file", "Images"))

    assert names["probabilities"].shape == (3, 10)
    assert names["worst"].relative < 1e-5


@pytest.mark.usefixtures("beside_digits")
def test_a_module_is_written_without_pytorch():
    follow(blocks("PyTorch")[:1])

    assert Path("digits_torch.py").exists()
    assert Path("digits_torch.safetensors").exists()


@pytest.mark.usefixtures("beside_digits")
def test_pytorch():
    need("torch", "safetensors")

    names = follow(blocks("PyTorch"))

    assert names["digits"].shape == (3, 10)


@pytest.mark.usefixtures("beside_digits")
def test_weights():
    from demitasse.io.weights.formats import load_weights

    follow(blocks("Weights"))

    want = load_weights("digits/digits_iter_600.caffemodel")
    found = load_weights("back.caffemodel")
    assert np.array_equal(found["ip1"][0], want["ip1"][0])


@pytest.mark.usefixtures("beside_digits")
def test_arrays_of_numpy():
    names = follow(blocks("Arrays of other libraries")[:1])

    assert np.array_equal(names["weight"], names["halved"])
    assert np.shares_memory(names["weight"], names["halved"])


@pytest.mark.usefixtures("beside_digits")
def test_tensors_of_pytorch():
    need("torch")

    names = follow(blocks("Arrays of other libraries"))

    assert np.array_equal(names["tensor"].numpy(), names["halved"])
    assert names["same"].shape == (2, 10)


def test_every_section_with_code_is_followed():
    sections = re.findall(r"^## (.*)\n", PAGE.read_text(), flags=re.M)
    followed = {"What is in the file", "Images", "PyTorch", "Weights", "Arrays of other libraries"}

    rest = [name for name in sections if name not in followed and blocks(name)]

    assert not rest
