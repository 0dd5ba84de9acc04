"""How each backend runs a layer type, as the backends' own dictionaries say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from demitasse.backends.cupy import lowerings as cupy
from demitasse.backends.cupy.steps import activation as cupy_activation
from demitasse.backends.numpy import lowerings as numpy
from demitasse.backends.numpy.steps import activation as numpy_activation
from demitasse.backends.onednn import lowerings as onednn
from demitasse.backends.onednn.steps import activation as onednn_activation
from demitasse.backends.onednn.steps import elementwise as onednn_elementwise
from demitasse.backends.ops import Activation
from demitasse.backends.step import Lowerings
from demitasse.layers.metadata import layer_metadata

_TABLES: Mapping[str, tuple[Lowerings, Mapping[str, object]]] = {
    "cpu": (
        onednn.LOWERINGS,
        {
            **numpy_activation.FUNCTIONS,
            **onednn_activation.FUNCTIONS,
            **onednn_elementwise.FUNCTIONS,
        },
    ),
    "numpy": (numpy.LOWERINGS, numpy_activation.FUNCTIONS),
    "cuda": (cupy.LOWERINGS, cupy_activation.FUNCTIONS),
}

BACKENDS = tuple(_TABLES)
"""What users run on. The backends for tests, ``strict`` and ``readonly``, have no Steps."""


@cache
def lowered_by(backend: str) -> frozenset[str]:
    """Return what one of ``BACKENDS`` has Steps for, as its own dictionaries say.

    Returns:
        Names of operations, and of functions of an Activation.
    """
    lowerings, functions = _TABLES[backend]
    return frozenset(op.__name__ for op in lowerings if op is not Activation) | set(functions)


def support(name: str) -> dict[str, str]:
    """Return how each backend runs a type: "lowered", "portable" or "host".

    Args:
        name: A type of the catalogue.

    Returns:
        For each of ``BACKENDS``: "lowered" where it has a faster way for at least the usual
        options, "portable" where the layer's own code runs on its arrays, "host" where the work
        is done on the host whatever the device.
    """
    facts = layer_metadata(name)
    if facts.host:
        return dict.fromkeys(BACKENDS, "host")
    return {
        backend: "lowered" if facts.op in lowered_by(backend) else "portable"
        for backend in BACKENDS
    }
