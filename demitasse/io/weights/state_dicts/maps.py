"""Which layers are which modules: a map in a file, or one that is found by order and shape.

A map has a line for each module: ``conv1 = features.0``, or ``bn1 + scale1 = features.1`` for a
BatchNorm and its Scale. Behind ``#`` are remarks. A name with ``=``, ``+`` or ``#`` in it is
written in double quotes, as JSON writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from demitasse.core.axes import shape_string
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, WeightsError
from demitasse.graph import listed
from demitasse.io.proto import LayerParameter
from demitasse.io.weights.state_dicts.units import Tensors, Unit

__all__ = ["Pairs", "by_order", "by_own_name", "map_text", "modules_of", "read_map"]

Pairs = list[tuple[Unit, str]]
"""Units with the names of their modules."""

UNREAD = "num_batches_tracked"
"""What a module counts and a net does not need."""

TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[=+#]|[^\s=+#"]+)')


def modules_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensors]:
    """Return the tensors of each module of a state_dict, in order."""
    found: dict[str, Tensors] = {}
    for name, array in arrays.items():
        module, _, tensor = name.rpartition(".")
        if tensor != UNREAD:
            found.setdefault(module, {})[tensor] = array
    return found


def read_map(path: Path, layers: Sequence[LayerParameter]) -> Pairs:
    """Read a map.

    Args:
        path: The file.
        layers: Those that have parameters.

    Raises:
        ConfigError: It cannot be read, or names a layer that there is not; all lines are named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read as a map of names: {error}"
        raise ConfigError(message) from error
    known = {layer.name: layer for layer in layers}
    pairs: Pairs = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        words = _words(line)
        if not words:
            continue
        *left, equals, module = words if len(words) > 2 else ["", "", ""]
        names = left[::2]
        if equals != "=" or any(sign != "+" for sign in left[1::2]) or len(left) % 2 == 0:
            faults.append(f"line {number} is not LAYER = MODULE or LAYER + LAYER = MODULE: {line}")
            continue
        wrong = [name for name in names if name not in known]
        faults += [
            f"line {number}: there is no layer {name!r} with parameters{suggestion(name, known)}"
            for name in wrong
        ]
        if not wrong:
            pairs.append((Unit(tuple(known[name] for name in names)), module))
    if faults:
        message = f"{path} is no map of this net:\n{listed(faults)}"
        raise ConfigError(message)
    return pairs


def _words(line: str) -> list[str]:
    """Return the names and signs of a line, without the remark."""
    found: list[str] = []
    for token in TOKEN.findall(line):
        if token == "#":
            break
        found.append(json.loads(token) if token.startswith('"') else token)
    return found


def map_text(pairs: Pairs) -> str:
    """Return a map as it is read."""

    def shown(name: str) -> str:
        return name if re.fullmatch(r'[^\s=+#"]+', name) else json.dumps(name)

    return "".join(
        f"{' + '.join(map(shown, unit.names))} = {shown(module)}\n" for unit, module in pairs
    )


def by_own_name(units: Sequence[Unit]) -> Pairs:
    """Let every module be called as its layer is; a BatchNorm with its Scale as the BatchNorm."""
    return [(unit, unit.names[0]) for unit in units]


def by_order(
    units: Sequence[Unit], wanted: Sequence[Tensors], modules: Mapping[str, Tensors]
) -> Pairs:
    """Give each unit the first module that is left and has tensors of the same shapes.

    Args:
        units: In the order of the net.
        wanted: Tensors of each as PyTorch has them.
        modules: In the order of the state_dict.

    Raises:
        WeightsError: For some unit none is left; all are named.
    """
    left, pairs, faults = dict(modules), list[tuple[Unit, str]](), list[str]()
    for unit, tensors in zip(units, wanted, strict=True):
        same = [name for name, theirs in left.items() if _shapes(theirs) == _shapes(tensors)]
        if not same:
            near = suggestion(unit.names[0], left)
            faults.append(f"{unit}, which needs {_told(tensors)}{near}")
            continue
        best = unit.names[0] if unit.names[0] in same else same[0]
        pairs.append((unit, best))
        del left[best]
    if faults:
        there = [f"{name}: {_told(tensors)}" for name, tensors in left.items()]
        message = (
            f"by order and shape no module is found for\n{listed(faults)}\n"
            f"left over are\n{listed(there or ['none'])}\nSay which is which with --map"
        )
        raise WeightsError(message)
    return pairs


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in tensors.items()}


def _told(tensors: Tensors) -> str:
    return ", ".join(f"{name} {shape_string(array.shape)}" for name, array in tensors.items())
