"""Where the layers of a net that was read from a file are written in it.

Messages cannot carry notes of their own, so the places are kept beside them, for the nets that
were read last.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from demitasse.proto.caffe_pb2 import NetParameter
from demitasse.proto.upgrade_notes import Lines

__all__ = ["carry_lines", "keep_lines", "line_of_layer", "origin_of_layer"]

KEPT = 32  # nets


class _Places(NamedTuple):
    net: NetParameter  # kept alive, so that its id stays its own
    source: str
    lines: Lines


_recent: OrderedDict[int, _Places] = OrderedDict()
_lock = Lock()


def keep_lines(net: NetParameter, source: str, lines: Lines) -> None:
    """Remember the line on which each layer of a net begins.

    Args:
        net: The net, which is recognised by identity.
        source: The file.
        lines: One per layer, from 1; None for a layer that is not in the file.
    """
    with _lock:
        _recent[id(net)] = _Places(net, source, list(lines))
        _recent.move_to_end(id(net))
        while len(_recent) > KEPT:
            _recent.popitem(last=False)


def carry_lines(old: NetParameter, new: NetParameter, kept: Sequence[int] | None = None) -> None:
    """Let a net made from another one, a copy or a selection, inherit its lines.

    Args:
        old: The net that was read.
        new: The net made from it.
        kept: For each layer of ``new`` its index in ``old``; None for a copy.
    """
    places = _recent.get(id(old))
    if places is not None:
        wanted = range(len(places.lines)) if kept is None else kept
        keep_lines(new, places.source, [places.lines[i] for i in wanted])


def line_of_layer(net: NetParameter, index: int) -> int | None:
    """The line on which layer ``index`` of a net begins, from 1; None where it is not known."""
    places = _recent.get(id(net))
    if places is None or not 0 <= index < len(places.lines):
        return None
    return places.lines[index]


def origin_of_layer(net: NetParameter, index: int) -> str:
    """``file:line`` of layer ``index`` of a net, or an empty string where it is not known."""
    line = line_of_layer(net, index)
    return "" if line is None else f"{_recent[id(net)].source}:{line}"
