"""Hold a module against the net, by PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.interop.export.check import Arrays, check_written
from demitasse.interop.export.torch.model import Module
from demitasse.interop.export.walk import Walk
from demitasse.io.weights.safetensors import read_safetensors
from demitasse.net import Net
from demitasse.testing.comparison import Comparison

__all__ = ["check_module", "torch_module"]

KEPT = "_kept"
"""Name under which a line that is looked at finds what keeps its values."""


def torch_module() -> Any:
    """Return PyTorch.

    Raises:
        DemitasseError: It is not installed.
    """
    try:
        return import_module("torch")
    except ImportError as error:
        message = (
            f"checking what is exported to PyTorch needs it ({error}); "
            "run: pip install 'demitasse[torch]'"
        )
        raise DemitasseError(message, code=ErrorCode.UNAVAILABLE, library="torch") from None


def check_module(
    files: Sequence[Path],
    written: Module,
    net: Net,
    walk: Walk,
    inputs: Arrays | None = None,
    seed: int = 0,
) -> Comparison:
    """Run a module by PyTorch, and the net, on the same inputs; see ``check_written``.

    Args:
        files: The module and its weights.
        written: What was written to them.
        net: The net, with its weights.
        walk: Which value is what in the module.
        inputs: An array for each input; None for random ones.
        seed: What random ones are made from.

    Raises:
        DataError: PyTorch cannot run it.
        DemitasseError: PyTorch is not installed.
    """
    torch = torch_module()
    runner = _Runner(torch, files, written)
    with torch.no_grad():
        return check_written("torch", runner, net, walk, None, inputs, seed)


class _Runner:
    """Runs a module as it is, or as one that keeps every value of every variable."""

    def __init__(self, torch: Any, files: Sequence[Path], written: Module) -> None:
        self.torch, self.written = torch, written
        self.tree = ast.parse(files[0].read_text(encoding="utf-8"), str(files[0]))
        self.weights = {
            name: torch.from_numpy(array) for name, array in read_safetensors(files[1]).items()
        }

    def __call__(self, given: Arrays, names: Sequence[str], *, fused: bool) -> Arrays:
        kept: dict[str, list[Any]] = {}
        module = self._made(None if fused else kept)
        tensors = [
            self.torch.from_numpy(np.ascontiguousarray(given[name], np.float32))
            for name in module.inputs
        ]
        try:
            found = module(*tensors)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            message = f"PyTorch cannot run it: {error}"
            raise DataError(message, code=ErrorCode.FAILED) from error
        if fused:
            several = found if isinstance(found, dict) else {module.outputs[0]: found}
            return {name: several[name].numpy() for name in names}
        for name, tensor in zip(module.inputs, tensors, strict=True):
            kept.setdefault(self.written.where[name][0], []).insert(0, tensor)
        places = {name: self.written.where[name] for name in names}
        return {name: kept[variable][count].numpy() for name, (variable, count) in places.items()}

    def _made(self, kept: dict[str, list[Any]] | None) -> Any:
        tree = self.tree if kept is None else _Keeping().visit(ast.parse(ast.unparse(self.tree)))
        space: dict[str, Any] = {"__file__": "module.py", "__name__": "exported"}
        if kept is not None:
            space[KEPT] = lambda name, value: kept.setdefault(name, []).append(value)
        exec(compile(ast.fix_missing_locations(tree), "module", "exec"), space)
        module = space[self.written.name]()
        module.load_state_dict(self.weights)
        return module.eval()


class _Keeping(ast.NodeTransformer):
    """Lets ``forward`` tell every value that it gives a variable."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name == "forward":
            node.body = [one for line in node.body for one in (line, *_telling(line))]
        return node


def _telling(line: ast.stmt) -> list[ast.stmt]:
    """Return lines that tell what a line gives its variables."""
    if not isinstance(line, ast.Assign):
        return []
    names = [one.id for one in ast.walk(line.targets[0]) if isinstance(one, ast.Name)]
    return ast.parse("\n".join(f"{KEPT}({name!r}, {name})" for name in names)).body
