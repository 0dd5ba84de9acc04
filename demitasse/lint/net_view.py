"""The layers of a net in one state, and the connections between them."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from demitasse.core.paths import resolve_path
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError
from demitasse.graph import filter_net
from demitasse.graph.filter import MOST
from demitasse.io.proto import LayerParameter, NetState, Phase, ReadNet
from demitasse.layers.metadata import field_value, layer_metadata
from demitasse.lint.findings import Finding, Severity

IN_PHASE = "\0"
"""Placeholder of the phase in a message; empty for findings in every phase."""


class ScopedFinding(NamedTuple):
    """A finding, with and without its phase."""

    here: Finding
    anywhere: Finding


class NetView:
    """The layers of a net in one state.

    Attributes:
        layers: The layers of that state.
        facts: Metadata of their types.
        phase: "TRAIN" or "TEST".
        sources: For each layer and bottom, the index of the layer that writes the bottom, or None.
        readers: For each layer and top, the indices of the layers that read the top.
        findings: Findings of ``report``.

    Raises:
        NetError: A layer has both include and exclude rules.
    """

    def __init__(self, net: ReadNet, state: NetState, base: Path) -> None:
        whole = deepcopy(net.message)
        whole.state.CopyFrom(state)
        filtered, kept = filter_net(whole)
        self.layers: list[LayerParameter] = list(filtered.layer)
        self.facts = [layer_metadata(layer.type) for layer in self.layers]
        self.phase, self.base, self.name = Phase.Name(state.phase), base, net.source
        self._origins = [net.origin(index) for index in kept]
        self.findings: list[ScopedFinding] = []
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

    def report(self, severity: Severity, code: str, index: int, message: str) -> None:
        """Add a finding about a layer; see ``finding``."""
        self.findings.append(self.finding(severity, code, index, message))

    def finding(self, severity: Severity, code: str, index: int, message: str) -> ScopedFinding:
        """Return a finding about a layer; the message may contain ``IN_PHASE``, once."""
        layer = self.layers[index]
        place = self._origins[index] or self.name
        where = f"{place and f'{place}: '}layer {layer.name!r} ({layer.type})"
        here, anywhere = (
            Finding(severity, code, message.replace(IN_PHASE, phase), where)
            for phase in (f" in phase {self.phase}", "")
        )
        return ScopedFinding(here, anywhere)

    def of_type(self, *types: str) -> Iterator[tuple[int, LayerParameter]]:
        """Yield the indices and layers of some types."""
        for index, layer in enumerate(self.layers):
            if layer.type in types:
                yield index, layer

    def following(self, index: int) -> set[str]:
        """Return the types of the layers that read any top of a layer."""
        return {self.layers[reader].type for readers in self.readers[index] for reader in readers}

    def files(self) -> Iterator[tuple[int, str, str, Path | None]]:
        """Yield the sources and mean files: index of the layer, field, name, path if it exists."""
        for index, layer in enumerate(self.layers):
            source = self.facts[index].source
            names = {
                "source": field_value(layer, source) if source else "",
                "mean_file": layer.transform_param.mean_file,
            }
            for field, name in names.items():
                if name:
                    yield index, field, name, _existing(name, self.base)

    def through(self, index: int | None) -> int | None:
        """Return the layer above all layers that keep the shape of their bottom."""
        while index is not None and self.facts[index].same_shape:
            index = self.sources[index][0] if self.sources[index] else None
        return index

    def writers(self, index: int, bottom: int) -> Iterator[tuple[int, int]]:
        """Yield the layers and tops that wrote the buffer of a bottom, the last first.

        The first layer that wrote to its own buffer ends the sequence.
        """
        blob, source = self.layers[index].bottom[bottom], self.sources[index][bottom]
        while source is not None:
            layer = self.layers[source]
            yield source, list(layer.top).index(blob)
            if blob not in layer.bottom:
                if not layer.bottom or not self.facts[source].shares.is_met(layer, self.phase):
                    return
                blob = layer.bottom[0]
            source = self.sources[source][list(layer.bottom).index(blob)]

    def missing(self) -> list[ScopedFinding]:
        """Return findings on blobs that no layer above their readers writes."""
        found: list[ScopedFinding] = []
        for index, layer in enumerate(self.layers):
            for blob, source in zip(layer.bottom, self.sources[index], strict=True):
                if source is None:
                    above = self.layers[:index] if len(found) < MOST else []  # else quadratic time
                    near = suggestion(blob, [top for one in above for top in one.top])
                    message = f"no layer above it has a top {blob!r}{IN_PHASE}{near}"
                    found.append(self.finding("error", "unknown-blob", index, message))
        return found

    @cached_property
    def losses(self) -> list[int]:
        """Indices of the layers with a loss."""
        return [
            index
            for index, layer in enumerate(self.layers)
            if any(layer.loss_weight) or (self.facts[index].is_loss and not layer.loss_weight)
        ]


def _existing(name: str, base: Path) -> Path | None:
    """Return the path of a file or folder; None if it does not exist or its name is impossible."""
    try:
        path = resolve_path(name, base)
        return path if path.exists() else None
    except (ConfigError, OSError):
        return None
