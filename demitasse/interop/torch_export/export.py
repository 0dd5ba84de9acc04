"""``export_torch``: write a net as a PyTorch module, and check the module."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.deprecated import deprecated_attribute
from demitasse.core.device import Device
from demitasse.core.extras import needs_extra
from demitasse.core.paths import is_text
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode
from demitasse.interop.export.layer_graph import Batch, LayerGraph, build_net, convert
from demitasse.interop.export.reduction import Shapes
from demitasse.interop.torch_export.converters import unsupported_reason
from demitasse.interop.torch_export.module import Module, build_module
from demitasse.io.proto import NetParameter
from demitasse.io.weights.safetensors import read_safetensors, safetensors_pieces
from demitasse.net import Net
from demitasse.net.build import as_sequence

if TYPE_CHECKING:
    from demitasse.interop.export.check import Arrays
    from demitasse.testing.comparison import Comparison

RECORD = "_record"
"""Name of the function that records the values of variables."""


@dataclass
class TorchExported:
    """Result of ``export_torch``.

    Attributes:
        files: The module, and its state_dict as safetensors.
        inputs: Input name -> sizes; a symbolic size is a formula.
        outputs: Output name -> sizes.
        notes: Removed layers and assumptions, in words.
        dtype: Element type of the parameters.
        net: The exported net, with its weights.
        layer_graph: Layers and values of the net.
        module: Text and arrays of the module.
    """

    files: list[Path]
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    notes: list[str]
    dtype: str
    net: Net
    layer_graph: LayerGraph
    module: Module

    walk = deprecated_attribute("TorchExported", "walk", "layer_graph")

    def compare(self, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Comparison:
        """Run the module by PyTorch, and compare it with the net, layer by layer.

        Args:
            inputs: An array for each input; None for random ones.
            seed: Seed of random inputs.

        Raises:
            ConfigError: An input has no array.
            DataError: PyTorch cannot run the module.
            DemitasseError: PyTorch is not installed.
        """
        from demitasse.interop.export.check import check_export

        torch = _torch()
        runner = _Runner(torch, self.files, self.module)
        with torch.no_grad():
            return check_export("torch", runner, self.net, self.layer_graph, None, inputs, seed)


def export_torch(
    net: str | os.PathLike[str] | NetParameter | Net,
    weights: Any,
    path: str | os.PathLike[str],
    *,
    outputs: Sequence[str] = (),
    only: bool = False,
    batch: Batch = None,
    shapes: Shapes | None = None,
    check: bool = False,
    level: int = 0,
    stages: Sequence[str] = (),
    device: str | Device | None = None,
) -> TorchExported:
    """Write a net of phase TEST as a Python file with an ``nn.Module``, and its weights.

    The weights are the module's state_dict, in ``NAME.safetensors`` beside the Python file. Both
    files replace existing ones when both are complete. Only ``check`` needs PyTorch.

    Args:
        net: A prototxt file, a message, or a net, whose parameters are used then.
        weights: Files or messages to load parameters from; one, several, or None.
        path: The file to write, ``NAME.py``.
        outputs: Names of blobs to add to the outputs.
        only: Write ``outputs`` alone and the layers that they need.
        batch: "dynamic" for a symbolic first axis of every input; a number, or "fixed" for that of
            the net; None for a symbolic one where the net allows it.
        shapes: Shapes of inputs, in place of declared ones. A shape of another blob turns the blob
            into an input and removes the layers that compute it.
        check: Run the module by PyTorch on random inputs and compare it with the net.
        level: Level of the net's state.
        stages: Stages of the net's state.
        device: Device of the net; None for the configured one.

    Returns:
        The written files, inputs, outputs and notes.

    Raises:
        NetError: Some layers have no PyTorch form (names all; writes nothing), or the batch of the
            net cannot be "dynamic", or ``check`` finds a difference.
        ConfigError: An argument has an invalid value.
        DemitasseError: A file cannot be read, or ``check`` needs PyTorch.
    """
    place = Path(path)
    if place.suffix != ".py":
        message = f"got {place}, expected a file name that ends in .py"
        raise ConfigError(message, code=ErrorCode.INVALID, field="path", got=str(place))
    if check:
        _torch()
    made, notes = build_net(
        net, tuple(as_sequence(weights)), unsupported_reason, outputs=outputs, only=only,
        batch=batch, shapes=shapes, level=level, stages=stages, device=device,
    )  # fmt: skip
    origin = "" if isinstance(net, NetParameter | Net) or is_text(net) else Path(net).name
    with made.exclusive("export"):
        module, layers = convert(
            made, () if only else outputs, batch, notes,
            lambda layers: build_module(layers, made.name, origin),
        )  # fmt: skip
    files = [place, place.with_suffix(".safetensors")]
    with atomic_write(files[0]) as text, atomic_write(files[1]) as weights_file:
        text.write(module.text.encode())
        for piece in safetensors_pieces(module.arrays, "pt"):
            weights_file.write(piece)
    result = TorchExported(
        files=files,
        inputs={value.name: value.texts for value in layers.inputs},
        outputs={name: value.texts for name, value in layers.outputs.items()},
        notes=notes,
        dtype="float32",
        net=made,
        layer_graph=layers,
        module=module,
    )
    if check:
        result.compare().check_agreement(f"{result.files[0]} disagrees with the net", result.dtype)
    return result


# -- the check -----------------------------------------------------------------------------------


def _torch() -> Any:
    """Return PyTorch."""
    what = "checking an exported module"
    with needs_extra(DemitasseError, what, "PyTorch", "torch", library="torch"):
        return import_module("torch")


class _Runner:
    """Runs an exported module, as written or with a record of every assignment in ``forward``."""

    def __init__(self, torch: Any, files: Sequence[Path], written: Module) -> None:
        self.torch, self.written = torch, written
        self.tree = ast.parse(files[0].read_text(encoding="utf-8"), str(files[0]))
        self.weights = {
            name: torch.from_numpy(array) for name, array in read_safetensors(files[1]).items()
        }

    def __call__(self, given: Arrays, names: Sequence[str], fused: bool) -> Arrays:
        record: dict[str, list[Any]] = {}
        module = self._module(None if fused else record)
        tensors = [
            self.torch.from_numpy(np.asarray(given[name], np.float32, order="C"))
            for name in module.inputs
        ]
        try:
            found = module(*tensors)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            message = f"PyTorch cannot run the module: {error}"
            raise DataError(message, code=ErrorCode.FAILED) from error
        if fused:
            several = found if isinstance(found, dict) else {module.outputs[0]: found}
            return {name: several[name].numpy() for name in names}
        where = self.written.where
        for name, tensor in zip(module.inputs, tensors, strict=True):
            record.setdefault(where[name][0], []).insert(0, tensor)
        return {name: record[where[name][0]][where[name][1]].numpy() for name in names}

    def _module(self, record: dict[str, list[Any]] | None) -> Any:
        tree = self.tree
        space: dict[str, Any] = {"__file__": "module.py", "__name__": "exported"}
        if record is not None:
            tree = ast.parse(ast.unparse(self.tree))
            _record_assignments(tree)
            space[RECORD] = lambda name, value: record.setdefault(name, []).append(value)
        exec(compile(ast.fix_missing_locations(tree), "module", "exec"), space)
        module = space[self.written.name]()
        module.load_state_dict(self.weights)
        return module.eval()


def _record_assignments(tree: ast.Module) -> None:
    """Add a call of ``RECORD`` after every assignment in ``forward``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            lines, node.body = node.body, []
            for line in lines:
                targets = ast.walk(line.targets[0]) if isinstance(line, ast.Assign) else ()
                names = [one.id for one in targets if isinstance(one, ast.Name)]
                calls = "\n".join(f"{RECORD}({name!r}, {name})" for name in names)
                node.body += [line, *ast.parse(calls).body]
