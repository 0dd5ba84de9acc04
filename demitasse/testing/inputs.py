"""Random inputs for a net, which are labels, indices or marks where its layers want such."""

from __future__ import annotations

import numpy as np

from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net

__all__ = ["random_inputs"]


def random_inputs(net: Net, seed: int) -> dict[str, np.ndarray]:
    """Return normal noise for each input, and 0 where noise would be no label, index or mark.

    That is where a layer says so that reads the input, or there is one value for each item. What
    selects items is 1; -1 stands for no object.
    """
    random = np.random.default_rng(seed)
    held = _held(net)
    arrays = {}
    for name in net.inputs:
        shape = net.blobs[name].shape
        if held[name]:
            value = 1 if "selector" in held[name] else -1 if "objects" in held[name] else 0
            arrays[name] = np.full(shape, value, np.float32)
        elif len(shape) > 1 and np.prod(shape[1:]) > 1:
            arrays[name] = random.standard_normal(shape, np.float32)
        else:
            arrays[name] = np.zeros(shape, np.float32)
    return arrays


def _held(net: Net) -> dict[str, set[str]]:
    """Return, for each blob, what layers take its values for, other than plain values."""
    held: dict[str, set[str]] = {name: set() for name in net.blob_names}
    for index, layer in reversed(list(enumerate(net.layers))):
        facts = layer_metadata(layer.type)
        bottoms = [net.blob_names[i] for i in net.structure.bottom_ids(index)]
        for name, kind in zip(bottoms, facts.kinds_of_bottoms(len(bottoms)), strict=True):
            held[name] |= {kind} if kind else set()
        if facts.shares.is_met(layer.param, layer.phase):  # the same values under other names
            for top in net.structure.top_ids(index):
                held[bottoms[0]] |= held[net.blob_names[top]]
    return held
