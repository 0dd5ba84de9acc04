"""Pure functions on messages: what a net is before there are arrays."""

from __future__ import annotations

from demitasse.graph.faults import listed, raise_faults
from demitasse.graph.filter import filter_net, state_meets_rule
from demitasse.graph.needs import LayerSetup, Needs, who_needs_backward
from demitasse.graph.params import Param, append_params
from demitasse.graph.splits import insert_splits, moved_weight, moved_weights
from demitasse.graph.strides import move_strides
from demitasse.graph.wire import Graph, Node, wire

__all__ = [
    "Graph",
    "LayerSetup",
    "Needs",
    "Node",
    "Param",
    "append_params",
    "filter_net",
    "insert_splits",
    "listed",
    "move_strides",
    "moved_weight",
    "moved_weights",
    "raise_faults",
    "state_meets_rule",
    "who_needs_backward",
    "wire",
]
