"""Blobs of a net, their writers and their readers.

Source: Caffe, ``Net::AppendTop`` and ``Net::AppendBottom`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from demitasse.core.frozen_struct import FrozenStruct
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.graph.faults import raise_faults
from demitasse.io.proto import LayerParameter, NetParameter

__all__ = ["AUTOMATIC", "Graph", "Node", "wire"]

AUTOMATIC = "(automatic)"
"""Name of the automatic tops of loss layers, which no layer can read."""


class Node(FrozenStruct):
    """One layer: its message and the indices of its blobs."""

    param: LayerParameter
    bottoms: tuple[int, ...]
    tops: tuple[int, ...]


class Graph(FrozenStruct):
    """Layers and blobs, wired.

    Attributes:
        nodes: The layers, in order.
        blobs: Names of the blobs, in order of appearance.
        inputs: Indices of the blobs that Input layers produce.
        outputs: Indices of the blobs nobody reads, by name in alphabetical order.
    """

    nodes: tuple[Node, ...]
    blobs: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def wire(
    net: NetParameter, tops_needed: Sequence[int], origin_of: Callable[[int], str] = lambda _: ""
) -> Graph:
    """Wire a filtered net whose splits are in place.

    Args:
        net: The message.
        tops_needed: For each layer, how many tops it must have; missing ones are made up. 0 for
            layers that make up none.
        origin_of: Returns ``file:line`` of a layer of the message, where known.

    Raises:
        NetError: Bottoms that nobody produced, tops produced twice, or a wrong number of
            ``propagate_down``; all are named.
    """
    names: list[str] = []
    index: dict[str, int] = {}
    unread: set[str] = set()
    nodes: list[Node] = []
    inputs: list[int] = []
    faults: list[DemitasseError] = []

    def refuse(number: int, message: str, code: ErrorCode, **details: object) -> None:
        error = NetError(message, code=code, layer=net.layer[number].name, **details)
        faults.append(error.from_line(origin_of(number)))

    for number, (param, needed) in enumerate(zip(net.layer, tops_needed, strict=True)):
        if param.propagate_down and len(param.propagate_down) != len(param.bottom):
            given, count = len(param.propagate_down), len(param.bottom)
            message = (
                f"layer {param.name!r}: got {given} propagate_down for {count} bottoms; give one "
                "for each bottom, or none"
            )
            refuse(
                number, message, ErrorCode.COUNT_MISMATCH,
                field="propagate_down", got=given, expected=count,
            )  # fmt: skip
        bottoms: list[int] = []
        for i, blob in enumerate(param.bottom):
            if blob not in unread:
                message = f"unknown bottom blob {blob!r} (layer {param.name!r}, bottom index {i})"
                refuse(number, message, ErrorCode.UNKNOWN, blob=blob)
                continue
            unread.remove(blob)
            bottoms.append(index[blob])
        tops: list[int] = []
        for i, blob in enumerate(param.top):
            in_place = i < len(param.bottom) and param.bottom[i] == blob
            if in_place and blob in index:
                tops.append(index[blob])
            elif blob in index:
                message = f"top blob {blob!r} of layer {param.name!r} is produced twice"
                refuse(number, message, ErrorCode.DUPLICATE, blob=blob)
                continue
            else:
                index[blob] = len(names)
                tops.append(len(names))
                names.append(blob)
            unread.add(blob)
        if param.type == "Input":
            inputs += tops
        for _ in range(len(param.top), needed):
            tops.append(len(names))
            names.append(AUTOMATIC)
        nodes.append(Node(param, tuple(bottoms), tuple(tops)))
    raise_faults(faults)
    outputs = tuple(index[name] for name in sorted(unread, key=str.encode))
    return Graph(tuple(nodes), tuple(names), tuple(inputs), outputs)
