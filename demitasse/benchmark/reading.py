"""How fast a net's images are read, and how fast it runs when it reads them itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from demitasse.io.proto import DataParameter, LayerParameter, NetParameter, read_net
from demitasse.net import Net

__all__ = ["alone", "rate", "reads", "with_own_data"]

DRAINED = 8
"""Passes before time is taken: more than are read ahead, which would look like speed."""


def with_own_data(path: Path, batch: int) -> NetParameter:
    """Return a net that reads its own data, in batches of another size.

    Args:
        path: The net's prototxt.
        batch: Items of a batch, in every layer that reads data.
    """
    param = NetParameter()
    param.CopyFrom(read_net(path).message)
    for layer in param.layer:
        for message in _with_batches(layer):
            message.batch_size = batch
    return param


def reads(param: NetParameter) -> bool:
    """Whether any layer of a net reads data."""
    return any(_with_batches(layer) for layer in param.layer)


def alone(param: NetParameter) -> NetParameter:
    """Return a net of the layers that read data, and nothing else."""
    found = NetParameter(name=param.name)
    found.layer.extend(layer for layer in param.layer if _with_batches(layer))
    return found


def rate(work: Callable[[], object], net: Net, batch: int, seconds: float) -> float:
    """Return images per second of passes that follow each other without a pause.

    Args:
        work: One pass.
        net: The net that reads.
        batch: Images of a pass.
        seconds: How long.
    """

    def once() -> None:
        work()
        for name in net.outputs:
            net.blobs[name].cpu_data()
        net.synchronize()

    for _ in range(DRAINED):
        once()
    passes, begin = 0, perf_counter()
    while True:
        once()
        passes += 1
        if (time := perf_counter() - begin) >= seconds:
            return batch * passes / time


def _with_batches(layer: LayerParameter) -> list[DataParameter]:
    """Return the messages of a layer of data that say how large its batches are."""
    if layer.bottom or layer.type == "MemoryData":
        return []
    return [
        message
        for field, message in layer.ListFields()
        if field.message_type and "batch_size" in field.message_type.fields_by_name
    ]
