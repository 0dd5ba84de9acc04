"""Which processes a solver trains with, and the nets of its shards."""

from __future__ import annotations

from demitasse.errors import ConfigError, ErrorCode
from demitasse.net import Net
from demitasse.training.distributed import (
    AllReduce,
    Alone,
    Communicator,
    Crew,
    Shards,
    Single,
    Team,
)

__all__ = ["Workers"]

SAME_DATA = {"DummyData", "HDF5Output", "Input", "MemoryData"}
"""Types of layers that know no shard: each would train on the same, or write to the same file."""

OLD_ALLREDUCE: dict[str | None, AllReduce] = {"exact": "deterministic", "half": "fp16"}
"""Present value of each old value of ``allreduce``."""


class Workers:
    """What a solver was told of shards and processes.

    Args:
        shards: How many shards; None for as many as there are processes.
        processes: Those that train together; None for this one alone.
        allreduce: How gradients are added; None for what suits them.
        overlap: Whether gradients are exchanged while backward computes others.

    Raises:
        ConfigError: There are fewer shards than processes.
    """

    def __init__(
        self,
        shards: int | None,
        processes: Communicator | None,
        allreduce: AllReduce | None,
        *,
        overlap: bool = False,
    ) -> None:
        self._processes = processes if processes is not None else Single()
        size = self._processes.size
        self.shards = Shards(size if shards is None else shards, self._processes.rank, size)
        self._reduce, self._overlap = allreduce, overlap

    @property
    def several(self) -> bool:
        """Whether there is more than one shard."""
        return self.shards.count > 1

    def team(self, net: Net) -> Team:
        """Return who trains a net, which is that of this process's first shard.

        Raises:
            ConfigError: A layer of the net knows no shard.
            ParallelError: The other processes do not begin.
        """
        if not self.several:
            return Alone()
        for layer in net.layers:
            if layer.type in SAME_DATA:
                message = (
                    f"layer {layer.name!r} ({layer.type}) knows no shard: all {self.shards.count} "
                    "would have the same data; read it by Data, ImageData, HDF5Data or a Python "
                    "layer that looks at its rank"
                )
                raise ConfigError(message, code=ErrorCode.UNSUPPORTED, layer=layer.name)
        others = [net.clone(rank=shard) for shard in self.shards.hosted[1:]]
        return Crew(
            [net, *others], self._processes, self.shards, self._reduce, overlap=self._overlap
        )
