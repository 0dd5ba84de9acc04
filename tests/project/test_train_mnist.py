"""LeNet learns MNIST: the whole of it, from the files it is published in."""

import shutil
from pathlib import Path

import pytest

from demitasse import Solver
from demitasse.io.data.databases.mnist import convert

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist"


@pytest.mark.slow
def test_lenet_learns_mnist(reference_data, tmp_path, monkeypatch):
    for prototxt in EXAMPLE.glob("*.prototxt"):
        shutil.copy(prototxt, tmp_path)
    convert(reference_data / "data" / "mnist", tmp_path)
    monkeypatch.chdir(tmp_path)

    solver = Solver("solver.prototxt", device="cpu")
    solver.solve()

    assert solver.test(0)["accuracy"] > 0.985
    assert Path("lenet_iter_2000.caffemodel").exists()
