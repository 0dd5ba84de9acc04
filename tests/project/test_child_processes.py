"""Processes that the package starts import nothing from the working directory."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import demitasse
from demitasse.cli.commands.caffe import write_shims
from demitasse.compat.pycaffe.launch import CHILDREN

PACKAGE = Path(demitasse.__file__).parent
SAFE = ("-P", "-I")
"""Options of Python that leave the working directory out of ``sys.path``."""

MODULES = ("base64", "click", "csv", "json", "numpy", "random", "string", "tempfile")
NET = """
layer { name: "i" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
"""
CLI = [sys.executable, "-P", "-m", "demitasse"]
KERNEL = next(CHILDREN.glob("jupyter/kernels/*/kernel.json"))


def commands():
    """Yield file and line, and the second word, of commands that begin with this interpreter."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.List | ast.Tuple) and node.elts:
                first, *rest = (ast.unparse(part) for part in node.elts)
                if first == "sys.executable":
                    yield f"{file.relative_to(PACKAGE)}:{node.lineno}", rest[0].strip("'\"")


def test_every_command_that_begins_with_this_interpreter_is_safe():
    found = dict(commands())

    assert len(found) > 1
    assert {place: option for place, option in found.items() if option not in SAFE} == {}


def test_so_is_the_kernel_of_notebooks():
    assert json.loads(KERNEL.read_text())["argv"][:3] == ["python", "-P", "-m"]


@pytest.fixture
def evil(tmp_path):
    """A folder whose modules note that they were imported."""
    (tmp_path / "n.prototxt").write_text(NET)
    for name in MODULES:
        code = f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\nraise ImportError\n"
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        [*CLI, "summary", "n.prototxt"],
        [*CLI, "largest-batch", "n.prototxt", "--phase", "test", "--limit", "300MB",
         "--max-batch", "4"],
        ["shim:upgrade_net_proto_text", "n.prototxt", "o.prototxt"],
        ["shim:compute_image_mean", "--help"],
        [sys.executable, *json.loads(KERNEL.read_text())["argv"][1:4], "-c", "import json"],
    ],
    ids=["summary", "largest-batch", "upgrade", "mean", "kernel"],
)  # fmt: skip
def test_none_imports_a_module_of_the_folder(evil, tmp_path_factory, command):
    first, *rest = command
    if first.startswith("shim:"):
        tools = tmp_path_factory.mktemp("tools")
        write_shims(tools)
        first = str(tools / first.removeprefix("shim:"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [first, *rest], cwd=evil, env=environment, capture_output=True, text=True, check=False
    )

    assert not (evil / "imported").exists(), (evil / "imported").read_text()
    assert done.returncode == 0, done.stderr
