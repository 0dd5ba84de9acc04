"""Filter of a file's layers by phase, level and stages.

Source: Caffe, ``Net::FilterNet`` and ``Net::StateMeetsRule`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.graph.faults import raise_faults
from demitasse.io.proto import LayerParameter, NetParameter, NetState, NetStateRule

__all__ = ["filter_net", "state_meets_rule"]


def state_meets_rule(state: NetState, rule: NetStateRule) -> bool:
    """Return whether a state satisfies all conditions of a rule."""
    if rule.HasField("phase") and rule.phase != state.phase:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)


def is_included(layer: LayerParameter, state: NetState) -> bool:
    """Return whether a layer takes part in a state.

    Raises:
        NetError: It has both include and exclude rules.
    """
    if layer.include and layer.exclude:
        message = (
            f"layer {layer.name!r} has both include and exclude rules; "
            "say either where it is or where it is not"
        )
        raise NetError(message, code=ErrorCode.CONFLICT, layer=layer.name)
    if layer.include:
        return any(state_meets_rule(state, rule) for rule in layer.include)
    return not any(state_meets_rule(state, rule) for rule in layer.exclude)


def filter_net(net: NetParameter) -> tuple[NetParameter, list[int]]:
    """Return a copy of ``net`` with the layers that its own state includes.

    Returns:
        The copy, and for each of its layers the index it had before.

    Raises:
        NetError: Some layers have both kinds of rules; all are named.
    """
    kept: list[int] = []
    faults: list[DemitasseError] = []
    for index, layer in enumerate(net.layer):
        try:
            if is_included(layer, net.state):
                kept.append(index)
        except NetError as error:
            faults.append(error)
    raise_faults(faults)
    filtered = NetParameter()
    filtered.CopyFrom(net)
    if len(kept) < len(net.layer):
        del filtered.layer[:]
        filtered.layer.extend(net.layer[index] for index in kept)
    return filtered, kept
