"""A net as lint looks at it: the layers of one state, and who reads what of whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from demitasse.graph import filter_net
from demitasse.lint.finding import Finding, Severity
from demitasse.proto import LayerParameter, NetParameter, NetState, Phase, ReadNet

__all__ = ["View"]


class View:
    """The layers of a net in one state.

    Args:
        net: The net in the current format.
        state: Phase, level and stages.
        name: What the net is called where a layer's line is not known.
        base: Folder of the net's file, or None.

    Attributes:
        layers: The layers of that state.
        phase: "TRAIN" or "TEST".
        sources: For each layer and each of its bottoms, the number of the layer that writes it, or
            None.
        readers: For each layer and each of its tops, the numbers of the layers that read it.
        findings: What ``say`` was told.

    Raises:
        NetError: A layer has both include and exclude rules.
    """

    def __init__(self, net: ReadNet, state: NetState, base: Path) -> None:
        whole = NetParameter()
        whole.CopyFrom(net.message)
        whole.state.CopyFrom(state)
        filtered, kept = filter_net(whole)
        self.layers: list[LayerParameter] = list(filtered.layer)
        self.phase, self.base, self.name = Phase.Name(state.phase), base, net.source
        self._origins = [net.origin(index) for index in kept]
        self.findings: list[Finding] = []
        self.sources: list[list[int | None]] = []
        self.readers: list[list[list[int]]] = [[[] for _ in layer.top] for layer in self.layers]
        writers: dict[str, int] = {}
        for index, layer in enumerate(self.layers):
            self.sources.append([writers.get(blob) for blob in layer.bottom])
            for blob, source in zip(layer.bottom, self.sources[-1], strict=True):
                if source is not None:
                    tops = list(self.layers[source].top)
                    self.readers[source][tops.index(blob)].append(index)
            writers |= dict.fromkeys(layer.top, index)

    def say(self, severity: Severity, code: str, index: int, message: str) -> None:
        """Report something about a layer."""
        layer = self.layers[index]
        place = self._origins[index] or self.name
        where = f"{place}: " if place else ""
        where += f"layer {layer.name!r} ({layer.type})"
        self.findings.append(Finding(severity, code, message, where))

    def of_type(self, *types: str) -> Iterator[tuple[int, LayerParameter]]:
        """Yield the layers of some types."""
        for index, layer in enumerate(self.layers):
            if layer.type in types:
                yield index, layer

    def readers_of(self, index: int) -> list[int]:
        """Return the layers that read any top of a layer."""
        return [reader for readers in self.readers[index] for reader in readers]

    def through(self, index: int | None) -> int | None:
        """Return the layer whose output a blob is, apart from what element-wise layers do to it."""
        while index is not None and self.layers[index].type in ELEMENTWISE:
            index = self.sources[index][0] if self.sources[index] else None
        return index

    def missing(self) -> list[Finding]:
        """Return what is wrong with blobs that are read before any layer writes them."""
        before = len(self.findings)
        for index, layer in enumerate(self.layers):
            for blob, source in zip(layer.bottom, self.sources[index], strict=True):
                if source is None:
                    message = f"no layer before it has a top {blob!r} in phase {self.phase}"
                    self.say("error", "unknown-blob", index, message)
        found = self.findings[before:]
        del self.findings[before:]
        return found

    @property
    def losses(self) -> list[int]:
        """Layers that have a loss."""
        return [
            index
            for index, layer in enumerate(self.layers)
            if any(layer.loss_weight) or (layer.type.endswith("Loss") and not layer.loss_weight)
        ]


ELEMENTWISE = frozenset(
    {
        "AbsVal", "BNLL", "BatchNorm", "Bias", "Clip", "Dropout", "ELU", "GELU", "PReLU", "Power",
        "ReLU", "Scale", "Sigmoid", "Split", "Swish", "TanH",
    }
)  # fmt: skip
"""Types whose first top has as many channels as their first bottom."""
