"""One thing that is measured: a net, on a device, with a batch size, in a phase."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, read_net
from demitasse.net import Net

__all__ = ["Case", "with_batch"]


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        net: The net's prototxt.
        device: Where it runs.
        batch: How many images a pass takes.
        phase: "TEST" measures forward passes, "TRAIN" whole steps: forward, backward and update.
    """

    net: Path
    device: str
    batch: int
    phase: str

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        return f"{self.net.stem}[{self.device}-{self.batch}-{self.phase.lower()}]"


def with_batch(path: Path, phase: str, batch: int) -> NetParameter:
    """Return a net whose inputs hold ``batch`` items, from host memory.

    Layers that read data are replaced by inputs of the same shapes, so that their sources need not
    be read while time is taken; they must be there, or nobody knows the shapes.

    Args:
        path: The net's prototxt.
        phase: The phase it will run in.
        batch: Items on the first axis of every input that has as many as the first one.

    Raises:
        NetError: The net has no inputs.
        DemitasseError: It cannot be made.
    """
    with Net(path, phase, device="numpy") as net:
        inputs = {
            net.blob_names[top]: net.structure.blob_list[top].shape
            for index, layer in enumerate(net.layers)
            if not net.structure.bottom_ids(index) and not layer.blobs
            for top in net.structure.top_ids(index)
        }
        sources = {
            layer.name
            for index, layer in enumerate(net.layers)
            if not net.structure.bottom_ids(index) and not layer.blobs
        }
    if not inputs:
        message = f"{path} has no inputs, so it has no batch size"
        raise NetError(message, code=ErrorCode.MISSING, field="input")
    first = next(iter(inputs.values()))
    param = NetParameter()
    param.CopyFrom(read_net(path).message)
    layers = [layer for layer in param.layer if layer.name not in sources]
    del param.layer[:]
    for name, shape in inputs.items():
        layer = param.layer.add(name=name, type="Input", top=[name])
        grows = bool(shape) and shape[0] == first[0]
        layer.input_param.shape.add(dim=[batch, *shape[1:]] if grows else shape)
    param.layer.extend(layers)
    return param
