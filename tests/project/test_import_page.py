"""The page about importing is followed."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from demitasse.cli.root import cli

pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")

PAGE = Path(__file__).resolve().parents[2] / "docs/import.md"


def test_the_page_is_followed(digits_run, tmp_path, monkeypatch):
    shutil.copytree(digits_run.folder, tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}

    for kind, content in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M):
        if kind == "python":
            exec(compile(content, PAGE.name, "exec"), names)
        for line in content.splitlines() if kind == "bash" else ():
            assert CliRunner().invoke(cli, line.split()[1:]).exit_code == 0, line

    assert names["worst"].relative < 1e-5
