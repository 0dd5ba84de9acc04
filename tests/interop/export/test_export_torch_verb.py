"""``demitasse export ... --to torch``."""

import json

import pytest
from exporting import run_cli as run
from exporting import write_net

LAYERS = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 5 } }
"""
INPUTS = {"data": (2, 3, 6, 6)}
EXPORT = "export net.prototxt net.py --weights net.caffemodel --to torch"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with net.prototxt and net.caffemodel."""
    monkeypatch.chdir(tmp_path)
    write_net(LAYERS, INPUTS)
    return tmp_path


def test_both_files_are_written(folder):
    result = run(EXPORT)

    assert result.exit_code == 0, result.output
    assert "net.py" in result.stdout
    assert "net.safetensors" in result.stdout
    assert "batch x 3 x 6 x 6" in result.stdout
    assert (folder / "net.py").exists()
    assert (folder / "net.safetensors").exists()


def test_the_module_is_checked(folder):
    pytest.importorskip("torch", reason="needs torch: nox -s frameworks")

    result = run(f"{EXPORT} --check --json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["check"]["agree"] is True
