"""A model's net: its weights loaded, arrays run through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from demitasse.core.log import get_logger
from demitasse.net import Net

__all__ = ["Arrays", "load_weights", "run_net"]

log = get_logger(__name__)

Arrays = dict[str, np.ndarray]
"""Name of a blob -> what it holds."""


def load_weights(net: Net, weights: Sequence[Path]) -> None:
    """Load files of weights; tell of layers that none has weights for."""
    missing = set(net.params)
    for path in weights:
        missing &= set(net.load(path).missing)
    for layer in net.params:
        if layer in missing:
            log.warning("No file has weights for layer %s; it keeps those it was made with", layer)


def run_net(net: Net, inputs: Mapping[str, np.ndarray], outputs: Iterable[str]) -> Arrays:
    """Run arrays through a net, which other threads wait for; return copies of some blobs."""
    with net.lock:
        for name, array in inputs.items():
            net.set_input(name, array)
        net.forward()
        return {name: net.blob_by_name(name).cpu_data().copy() for name in outputs}
