"""Filter: the layers of a file that take part, by phase, level and stages; faults of a net.

Source: Caffe, ``Net::FilterNet`` and ``Net::StateMeetsRule`` in ``src/caffe/net.cpp``.
"""

from collections.abc import Sequence
from copy import deepcopy

from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, NetState, NetStateRule, Phase

MOST = 20  # number of faults that one message lists


def listed(faults: Sequence[object]) -> str:
    """Return one line per fault; beyond 20 faults, the last line is the number of the others."""
    lines = [str(fault) for fault in faults[:MOST]]
    if len(faults) > MOST:
        lines.append(f"... and {len(faults) - MOST} more")
    return "\n".join(lines)


def raise_faults(faults: Sequence[DemitasseError]) -> None:
    """Raise the single fault, or one NetError that lists all faults of a net."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        codes = {fault.code for fault in faults}
        code = codes.pop() if len(codes) == 1 else None
        raise NetError(listed(faults), code=code, faults=[fault.details for fault in faults])


def state_meets_rule(state: NetState, rule: NetStateRule) -> bool:
    """Return True if a state satisfies all conditions of a rule."""
    if rule.HasField("phase") and rule.phase != state.phase:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)


def filter_net(net: NetParameter) -> tuple[NetParameter, list[int]]:
    """Return a copy of ``net`` with the layers that its state includes, and their old indices."""
    kept: list[int] = []
    faults: list[DemitasseError] = []
    for index, layer in enumerate(net.layer):
        if layer.include and layer.exclude:
            message = (
                f"layer {layer.name!r} has both include and exclude rules; "
                "say either where it is or where it is not"
            )
            details = {"layer": layer.name, "index": index}
            faults.append(NetError(message, code=ErrorCode.CONFLICT, **details))
        rules = layer.include or layer.exclude
        if any(state_meets_rule(net.state, rule) for rule in rules) == bool(layer.include):
            kept.append(index)
    raise_faults(faults)
    filtered = deepcopy(net)
    if len(kept) < len(net.layer):
        del filtered.layer[:]
        filtered.layer.extend(net.layer[index] for index in kept)
    return filtered, kept


def filter_phase(
    net: NetParameter, phase: str, level: int, stages: Sequence[str]
) -> tuple[NetParameter, list[int]]:
    """Filter a net, which stays unchanged, in another state; ``stages`` are added to its own."""
    changed = deepcopy(net)
    changed.state.phase = Phase.Value(phase)
    changed.state.level = level
    changed.state.stage.extend(stages)
    return filter_net(changed)
