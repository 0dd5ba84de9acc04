"""Every library that the package imports is declared, and no declared one is unused."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# The module that a distribution installs, where its name is another.
MODULES = {
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "grpcio-tools": "grpc_tools",
    "mlflow-skinny": "mlflow",
    "nvidia-cudnn-frontend": "cudnn",
    "nvidia-ml-py": "pynvml",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "protobuf": "google",
    "scikit-learn": "sklearn",
}
# Installed with CuPy: parts of it, and the finder of CUDA libraries.
BROUGHT_ALONG = {"cuda", "cupyx"}
# Looked for on behalf of users who have them.
OF_USERS = {"selective_search_ijcv_with_python", "skimage"}
# Known to type checkers alone.
OF_CHECKERS = {"_typeshed"}


def modules(requirements: Iterable[object]) -> set[str]:
    names = [re.match(r"[\w.-]+", r)[0] for r in requirements if isinstance(r, str)]
    return {MODULES.get(name, name).replace("-", "_") for name in names} - {"demitasse"}


def constants(call: ast.Call) -> list[ast.Constant]:
    return [argument for argument in call.args if isinstance(argument, ast.Constant)]


def named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@cache
def imported() -> set[str]:
    """Top-level names of all libraries that the package imports anywhere, by whatever means."""
    found = set()
    for path in (ROOT / "demitasse").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Call) and named(node.func, "import_module"):
                found |= {str(name.value).partition(".")[0] for name in constants(node)}
    return found - sys.stdlib_module_names - {"demitasse"}


def test_every_imported_library_is_declared():
    declared = modules(PROJECT["project"]["dependencies"])
    declared |= modules(chain(*PROJECT["project"]["optional-dependencies"].values()))
    declared |= modules(chain(*PROJECT["dependency-groups"].values()))

    assert imported() - declared - BROUGHT_ALONG - OF_USERS - OF_CHECKERS == set()


def test_every_required_library_is_imported():
    required = modules(PROJECT["project"]["dependencies"])

    assert required <= imported()
