"""The way from a net to a module of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse.core.atomic import atomic_write
from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode
from demitasse.interop.export.prepare import Batch, made_net, with_free_batch
from demitasse.interop.export.request import Shapes
from demitasse.interop.export.torch.model import Module, module_of
from demitasse.interop.export.torch.table import reason_against
from demitasse.interop.export.walk import Value, Walk
from demitasse.io.proto import NetParameter
from demitasse.io.weights.safetensors import safetensors_pieces
from demitasse.net import Net
from demitasse.net.build import as_sequence

if TYPE_CHECKING:
    import numpy as np

    from demitasse.testing.comparison import Comparison

__all__ = ["TorchExported", "export_torch"]


@dataclass
class TorchExported:
    """A module of PyTorch that was written.

    Attributes:
        files: The module, and its state_dict as safetensors.
        inputs: Name of each input -> its sizes; a free one is a formula.
        outputs: The same of each output.
        notes: What was left out or assumed, in words.
        dtype: What its parameters are of.
        net: The net that was written, with its weights.
        walk: The net, as it was written down.
        module: What was written.
    """

    files: list[Path]
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    notes: list[str]
    dtype: str
    net: Net
    walk: Walk
    module: Module

    def compare(self, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Comparison:
        """Run the module by PyTorch, and hold it against the net, layer by layer.

        Args:
            inputs: An array for each input; None for random ones.
            seed: What random ones are made from.

        Raises:
            DataError: PyTorch cannot run it.
            DemitasseError: PyTorch is not installed.
        """
        from demitasse.interop.export.torch.check import check_module

        return check_module(self.files, self.module, self.net, self.walk, inputs, seed)


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
    """Write a net of phase TEST as a file of Python with an ``nn.Module``, and its weights.

    The weights are the module's state_dict, in ``NAME.safetensors`` beside the file. Both files
    replace old ones when both are complete. PyTorch is needed for ``check`` alone.

    Args:
        net: A prototxt file, a message, or a net, whose parameters are used then.
        weights: Files or messages to load parameters from; one, several, or None.
        path: The file to write, ``NAME.py``.
        outputs: Names of blobs that are outputs, too.
        only: Whether those are the only outputs, and what they do not need is left out.
        batch: "dynamic" for a free first axis of every input; a number, or "fixed" for that of the
            net; None: free where the net allows it.
        shapes: Shapes of inputs, in place of those that the net has for them; and of other blobs
            that are to be inputs, in place of the layers that compute them.
        check: Whether the module is run by PyTorch on random inputs and held against the net.
        level: Level of the net's state.
        stages: Stages of the net's state.
        device: Where the net runs; None asks the configuration.

    Returns:
        What was written.

    Raises:
        NetError: Some layers have no form in PyTorch: all are named, and nothing is written. Or the
            net takes no other batch, and a free one is asked for. Or, with ``check``, the module
            computes something else than the net.
        ConfigError: An argument has a value it cannot have.
        DemitasseError: A file cannot be read, or PyTorch is not installed, with ``check``.
    """
    place = Path(path)
    if place.suffix != ".py":
        message = f"{place} must end in .py, as a module of Python does"
        raise ConfigError(message, code=ErrorCode.INVALID, field="path", got=str(place))
    if check:
        from demitasse.interop.export.torch.check import torch_module

        torch_module()
    made, notes = made_net(
        net, tuple(as_sequence(weights)), reason_against, outputs=outputs, only=only, batch=batch,
        shapes=shapes, level=level, stages=stages, device=device,
    )  # fmt: skip
    origin = "" if isinstance(net, NetParameter | Net) else Path(net).name
    with made.exclusive("export"):
        module, found = with_free_batch(
            made, () if only else outputs, batch, notes,
            lambda walk: module_of(walk, made.name, origin),
        )  # fmt: skip
    result = TorchExported(
        files=_write(module, place),
        inputs={value.name: _sizes(value) for value in found.inputs},
        outputs={name: _sizes(value) for name, value in found.outputs.items()},
        notes=notes,
        dtype="float32",
        net=made,
        walk=found,
        module=module,
    )
    if check:
        result.compare().need_agreement(f"{result.files[0]} parts from the net", result.dtype)
    return result


def _write(module: Module, path: Path) -> list[Path]:
    """Write the module and its weights; neither has its name before both are complete.

    Raises:
        OSError: A file cannot be written; old ones are kept.
    """
    beside = path.with_suffix(".safetensors")
    with atomic_write(path) as code, atomic_write(beside) as weights:
        code.write(module.text.encode())
        for piece in safetensors_pieces(module.arrays, "pt"):
            weights.write(piece)
    return [path, beside]


def _sizes(value: Value) -> list[int | str]:
    return [size if isinstance(size, int) else str(size) for size in value.sizes]
