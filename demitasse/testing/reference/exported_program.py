"""Programs of ``torch.export`` (``.pt2`` files), run node by node.

Reading such a file runs code of its author: PyTorch evaluates expressions, imports functions by
name, and unpickles constants. Therefore only files that the user trusts are read.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.extras import needs_extra
from demitasse.core.paths import regular_file
from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.testing.reference.model import Parameter, Value, kind_of, role_of


class ExportedProgram:
    """A program of ``torch.export`` as a reference model; see ``open_reference`` for errors."""

    ordered = True

    def __init__(self, path: Path, *, trust: bool) -> None:
        self.name = path.name
        if not trust:
            message = (
                "reading a .pt2 file runs code from it with your permissions; add --trust if you "
                "trust its author, or use an .onnx file, which runs no code"
            )
            raise DataError(message, str(path), code=ErrorCode.UNTRUSTED)
        with needs_extra(DemitasseError, "running .pt2 files", "PyTorch", "torch", library="torch"):
            self._torch = import_module("torch")
        try:
            program = self._torch.export.load(str(regular_file(path)))
            self._module = program.module()
        except Exception as error:  # any exception of code in the file
            message = f"PyTorch cannot read the file: {error}"
            raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
        self._state = program.state_dict
        self._nodes = list(self._module.graph.nodes)
        [output] = [node for node in self._nodes if node.op == "output"]
        self.outputs = tuple(node.name for node in output.all_input_nodes)

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shapes of the inputs."""
        found: dict[str, tuple[int | None, ...]] = {}
        for node in self._nodes:
            if node.op == "placeholder":
                sizes = node.meta["val"].shape
                found[node.name] = tuple(s if isinstance(s, int) else None for s in sizes)
        return found

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return the result of every function call."""
        torch, values = self._torch, list[Value]()

        class Recorder(torch.fx.Interpreter):  # type: ignore[name-defined,misc]
            def run_node(self, n: Any) -> Any:
                result = super().run_node(n)
                if n.op == "call_function" and isinstance(result, torch.Tensor):
                    values.append(_value(n, result))
                return result

        tensors = []
        for node in self._nodes:
            if node.op == "placeholder":
                array = torch.from_numpy(np.array(arrays[node.name], order="C"))
                tensors.append(array.to(node.meta["val"].dtype))
        try:
            with torch.no_grad():
                Recorder(self._module).run(*tensors)
        except Exception as error:  # any exception of code in the file
            message = f"PyTorch cannot run {self.name}: {error}"
            raise DemitasseError(message, code=ErrorCode.FAILED) from error
        return values

    def parameters(self) -> list[Parameter]:
        """Return parameters and running averages, in the order of use."""
        found: dict[str, Parameter] = {}
        for node in self._nodes:
            operation = _operation(node)
            arguments = node.args if node.op == "call_function" else ()
            for position, argument in enumerate(arguments):
                name = str(getattr(argument, "target", ""))
                if getattr(argument, "op", "") != "get_attr" or name in found:
                    continue
                tensor = self._state.get(name)
                if tensor is not None and tensor.is_floating_point():
                    role = role_of(operation, position - 1)
                    found[name] = Parameter(name, tensor.detach().numpy(), role)
        return list(found.values())


def _value(node: Any, result: Any) -> Value:
    """Return the result of a node, named after its module and the node."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = stack[-1][0] if stack else ""
    operation = _operation(node)
    names = tuple(dict.fromkeys(one for one in (module, node.name) if one))
    # a copy, as the next operation may run in place
    return Value(names, np.array(result.detach().numpy()), operation, kind_of(operation))


def _operation(node: Any) -> str:
    """Return e.g. "conv2d" for a call of ``aten.conv2d.default``."""
    return str(node.target).removeprefix("aten.").partition(".")[0]
