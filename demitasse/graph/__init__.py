"""Pure functions on messages: a net before there are arrays."""

from demitasse.graph.filter import filter_net, filter_phase, listed, raise_faults, state_meets_rule
from demitasse.graph.splits import insert_splits, moved_weight, moved_weights
from demitasse.graph.strides import move_strides
from demitasse.graph.wiring import (
    Graph,
    LayerSetup,
    Needs,
    Node,
    Param,
    append_params,
    compute_backward_needs,
    wire,
)

__all__ = [
    "Graph",
    "LayerSetup",
    "Needs",
    "Node",
    "Param",
    "append_params",
    "compute_backward_needs",
    "filter_net",
    "filter_phase",
    "insert_splits",
    "listed",
    "move_strides",
    "moved_weight",
    "moved_weights",
    "raise_faults",
    "state_meets_rule",
    "wire",
]
