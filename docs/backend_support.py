"""Support of a layer type by each backend, from the backends' own tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from demitasse.backends.cupy import lowerings as cupy
from demitasse.backends.cupy.steps import elementwise as cupy_activation
from demitasse.backends.numpy import lowerings as numpy
from demitasse.backends.numpy.steps import elementwise as numpy_activation
from demitasse.backends.onednn import lowerings as onednn
from demitasse.backends.onednn.steps import elementwise as onednn_activation
from demitasse.backends.ops import Activation
from demitasse.backends.step import Lowerings
from demitasse.layers.metadata import layer_metadata

_TABLES: Mapping[str, tuple[Lowerings, Mapping[str, object]]] = {
    "cpu": (
        onednn.LOWERINGS,
        {
            **numpy_activation.FUNCTIONS,
            **onednn_activation.FUNCTIONS,
        },
    ),
    "numpy": (numpy.LOWERINGS, numpy_activation.FUNCTIONS),
    "cuda": (cupy.LOWERINGS, cupy_activation.FUNCTIONS),
}

BACKENDS = tuple(_TABLES)
"""Backends for users. The backends for tests, ``strict`` and ``readonly``, have no Steps."""


@cache
def lowered_by(backend: str) -> frozenset[str]:
    """Return the operations for which a backend has Steps.

    Returns:
        Names of operations, and of functions of an Activation.
    """
    lowerings, functions = _TABLES[backend]
    return frozenset(op.__name__ for op in lowerings if op is not Activation) | set(functions)


def support(name: str) -> dict[str, str]:
    """Return the support of a type by each backend: "lowered", "portable" or "host".

    Args:
        name: A type of the catalogue.

    Returns:
        For each of ``BACKENDS``: "lowered" if it has a Step for at least the usual options,
        "portable" if the layer's own code runs on its arrays, "host" if the work is done on the
        host for every device.
    """
    facts = layer_metadata(name)
    if facts.host:
        return dict.fromkeys(BACKENDS, "host")
    return {
        backend: "lowered" if facts.op in lowered_by(backend) else "portable"
        for backend in BACKENDS
    }
