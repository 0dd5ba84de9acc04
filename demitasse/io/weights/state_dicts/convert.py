"""Conversion between Caffe's parameters and state_dicts of PyTorch.

A map file has a line per module: ``conv1 = features.0``, or ``bn1 + scale1 = features.1`` for a
BatchNorm and its Scale. ``#`` begins a comment. A name with ``=``, ``+`` or ``#`` is written in
double quotes, as in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from demitasse.core.text import suggestion
from demitasse.errors import ErrorCode, ShapeError, WeightsError
from demitasse.graph import listed
from demitasse.io.proto import LayerParameter
from demitasse.io.weights.formats import Parameters
from demitasse.io.weights.state_dicts.maps import (
    Pairs,
    by_order,
    by_own_name,
    modules_of,
    read_map,
)
from demitasse.io.weights.state_dicts.units import Unit, units_of

__all__ = ["pairs_for", "to_parameters", "to_state_dict"]


def to_state_dict(
    layers: Sequence[LayerParameter], weights: Parameters, path: Path | None
) -> tuple[dict[str, np.ndarray], Pairs]:
    """Return the state_dict of a file's parameters.

    Args:
        layers: Layers of the file with parameters.
        weights: Their parameters.
        path: A map file; None: modules have the names of their layers.

    Returns:
        The state_dict, and the pairs of layers and modules.

    Raises:
        ConfigError: The map does not fit.
        WeightsError: PyTorch has no module with a layer's parameters.
    """
    pairs = by_own_name(units_of(layers)) if path is None else read_map(path, layers)
    found: dict[str, np.ndarray] = {}
    for unit, module in pairs:
        tensors = unit.to_torch([list(weights[name].values()) for name in unit.names])
        for name, array in tensors.items():
            found[f"{module}.{name}"] = np.ascontiguousarray(array)
    return found, pairs


def pairs_for(
    layers: Sequence[LayerParameter],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    arrays: Mapping[str, np.ndarray],
    path: Path | None,
) -> Pairs:
    """Return the pairs of a net's layers and the modules of a state_dict.

    Args:
        layers: Layers of the net with parameters.
        shapes: Shapes of their parameters, by layer name.
        arrays: The state_dict.
        path: A map file; None: match by order and shape.

    Raises:
        ConfigError: The map does not fit.
        WeightsError: A layer has no matching module.
    """
    if path is not None:
        return read_map(path, layers)
    units = units_of(layers)
    wanted = [
        unit.to_torch([[np.broadcast_to(np.float32(1), one) for one in shapes[name]]
                       for name in unit.names])
        for unit in units
    ]  # fmt: skip
    return by_order(units, wanted, modules_of(arrays))


def to_parameters(
    pairs: Pairs,
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    arrays: Mapping[str, np.ndarray],
) -> tuple[Parameters, list[str]]:
    """Return a net's parameters, and the unused modules.

    Raises:
        WeightsError: A module or a layer is missing or does not fit; the error lists all faults.
    """
    modules, faults, found = modules_of(arrays), list[str](), Parameters()
    for unit, module in pairs:
        if module not in modules:
            near = suggestion(module, modules)
            faults.append(f"there is no module {module!r} for {unit}{near}")
            continue
        try:
            blobs = unit.to_caffe(modules[module], [shapes[name] for name in unit.names])
        except (ShapeError, WeightsError) as error:
            faults.append(f"module {module!r}: {error}")
            continue
        for name, layer in zip(unit.names, blobs, strict=True):
            found[name] = dict(enumerate(np.ascontiguousarray(one) for one in layer))
    faults += [f"{name!r} has no module" for name in _missing(pairs, shapes)]
    if faults:
        message = f"the state_dict does not fit the net:\n{listed(faults)}"
        raise WeightsError(message, code=ErrorCode.INCOMPATIBLE, faults=len(faults))
    taken = {module for _, module in pairs}
    return found, [name for name in modules if name not in taken]


def _missing(pairs: Sequence[tuple[Unit, str]], shapes: Mapping[str, object]) -> list[str]:
    given = {name for unit, _ in pairs for name in unit.names}
    return [name for name in shapes if name not in given]
