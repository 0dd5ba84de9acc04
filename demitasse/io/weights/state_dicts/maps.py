"""Maps from layers to modules: read from a file, or matched by order and shape."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from demitasse.core.axes import shape_string
from demitasse.core.paths import code_of
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode, WeightsError
from demitasse.graph import listed
from demitasse.io.proto import LayerParameter
from demitasse.io.weights.state_dicts.units import Tensors, Unit

__all__ = ["Pairs", "by_order", "by_own_name", "map_text", "modules_of", "read_map"]

Pairs = list[tuple[Unit, str]]
"""Units with the names of their modules."""

UNREAD = "num_batches_tracked"
"""Counter of PyTorch's BatchNorm, which Caffe does not have."""

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
    """Read a map file.

    Args:
        path: The file.
        layers: Layers with parameters.

    Raises:
        ConfigError: The file cannot be read, or names unknown layers; the error lists all lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read as a map of names: {error}"
        code = code_of(error) if isinstance(error, OSError) else ErrorCode.UNREADABLE
        raise ConfigError(message, code=code, file=str(path)) from error
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
        raise ConfigError(message, code=ErrorCode.INVALID, file=str(path), faults=len(faults))
    return pairs


def _words(line: str) -> list[str]:
    """Return the names and operators of a line, without the comment."""
    found: list[str] = []
    for token in TOKEN.findall(line):
        if token == "#":
            break
        found.append(json.loads(token) if token.startswith('"') else token)
    return found


def map_text(pairs: Pairs) -> str:
    """Return the text of a map file."""

    def shown(name: str) -> str:
        return name if re.fullmatch(r'[^\s=+#"]+', name) else json.dumps(name)

    return "".join(
        f"{' + '.join(map(shown, unit.names))} = {shown(module)}\n" for unit, module in pairs
    )


def by_own_name(units: Sequence[Unit]) -> Pairs:
    """Name modules like their layers; a BatchNorm with its Scale like the BatchNorm."""
    return [(unit, unit.names[0]) for unit in units]


def by_order(
    units: Sequence[Unit], wanted: Sequence[Tensors], modules: Mapping[str, Tensors]
) -> Pairs:
    """Pair each unit with the first unused module with tensors of the same shapes.

    Args:
        units: In the order of the net.
        wanted: Expected tensors of each unit.
        modules: In the order of the state_dict.

    Raises:
        WeightsError: A unit has no matching module; the error lists all units.
    """
    left, pairs, faults = dict(modules), list[tuple[Unit, str]](), list[str]()
    for unit, tensors in zip(units, wanted, strict=True):
        same = [name for name, theirs in left.items() if _shapes(theirs) == _shapes(tensors)]
        if not same:
            near = suggestion(unit.names[0], left)
            faults.append(f"{unit}, which needs {_shapes_text(tensors)}{near}")
            continue
        best = unit.names[0] if unit.names[0] in same else same[0]
        pairs.append((unit, best))
        del left[best]
    if faults:
        there = [f"{name}: {_shapes_text(tensors)}" for name, tensors in left.items()]
        message = (
            f"by order and shape no module matches\n{listed(faults)}\n"
            f"unused modules are\n{listed(there or ['none'])}\nGive the pairs with --map"
        )
        raise WeightsError(message, code=ErrorCode.INCOMPATIBLE, faults=len(faults))
    return pairs


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in tensors.items()}


def _shapes_text(tensors: Tensors) -> str:
    return ", ".join(f"{name} {shape_string(array.shape)}" for name, array in tensors.items())
