"""Layers and blobs of the backward pass.

Source: Caffe, ``Net::Init`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demitasse.core.frozen_struct import FrozenStruct
from demitasse.graph.wire import Graph

__all__ = ["LayerSetup", "Needs", "who_needs_backward"]


class LayerSetup(FrozenStruct):
    """Facts of a layer that are known after its setup.

    Attributes:
        params: For each parameter, whether its learning rate is not 0.
        losses: For each top, whether it has a loss weight.
        allow_force: For each bottom, whether ``force_backward`` may ask for its gradient.
        without_gradient: The bottoms that have no gradient, whoever asks: labels, indices, ...
    """

    params: tuple[bool, ...] = ()
    losses: tuple[bool, ...] = ()
    allow_force: tuple[bool, ...] = ()
    without_gradient: frozenset[int] = frozenset()


@dataclass
class Needs:
    """Layers and blobs of the backward pass.

    Attributes:
        layers: For each layer, whether its backward runs.
        bottoms: For each layer and bottom, whether that gradient is computed.
        blobs: For each blob, whether its gradient is.
        params: For each layer and parameter, whether its gradient is computed.
    """

    layers: list[bool]
    bottoms: list[list[bool]]
    blobs: list[bool]
    params: list[list[bool]]


def who_needs_backward(graph: Graph, facts: Sequence[LayerSetup], force: bool = False) -> Needs:
    """Find who takes part in the backward pass.

    Forward, a layer does when a bottom or a parameter of it does, and then all its tops do. Then,
    from the end, layers no loss depends on are pruned. ``force`` brings everything back. Bottoms
    without a gradient get none; in the original a layer fails that is asked for one.
    """
    needs = _from_the_front(graph, facts)
    _from_the_losses(graph, facts, needs)
    if force:
        _force(graph, facts, needs)
    return needs


def _from_the_front(graph: Graph, facts: Sequence[LayerSetup]) -> Needs:
    blobs = [False] * len(graph.blobs)
    needs = Needs([], [], blobs, [list(fact.params) for fact in facts])
    for node, fact in zip(graph.nodes, facts, strict=True):
        below = [blobs[b] for b in node.bottoms]
        # the layer's own propagate_down decides for the gradient of the bottom,
        # not for whether the layer takes part
        wanted = list(node.param.propagate_down)
        needs.bottoms.append(
            [bool(w) and j not in fact.without_gradient for j, w in enumerate(wanted or below)]
        )
        needs.layers.append(any(below) or any(fact.params))
        if needs.layers[-1]:
            for top in node.tops:
                blobs[top] = True
    return needs


def _from_the_losses(graph: Graph, facts: Sequence[LayerSetup], needs: Needs) -> None:
    under_loss: set[int] = set()
    skippable: set[int] = set()
    for i in reversed(range(len(graph.nodes))):
        node, losses = graph.nodes[i], facts[i].losses
        contributes = any(
            (j < len(losses) and losses[j]) or top in under_loss for j, top in enumerate(node.tops)
        )
        if all(top in skippable for top in node.tops) and needs.layers[i]:
            needs.layers[i] = False
            needs.bottoms[i] = [False] * len(node.bottoms)
        if not contributes:
            needs.layers[i] = False
            needs.bottoms[i] = [False] * len(node.bottoms)
        else:
            under_loss.update(node.bottoms)
        skippable.update(
            b for b, need in zip(node.bottoms, needs.bottoms[i], strict=True) if not need
        )


def _force(graph: Graph, facts: Sequence[LayerSetup], needs: Needs) -> None:
    for i, (node, fact) in enumerate(zip(graph.nodes, facts, strict=True)):
        needs.layers[i] = True
        needs.params[i] = [True] * len(fact.params)
        for j, blob in enumerate(node.bottoms):
            needs.bottoms[i][j] = needs.bottoms[i][j] or fact.allow_force[j]
            needs.blobs[blob] = needs.blobs[blob] or needs.bottoms[i][j]
