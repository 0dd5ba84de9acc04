"""Wiring: blobs with their writers and readers, parameters with their owners, backward needs.

Source: Caffe, ``Net::Init``, ``AppendTop``, ``AppendBottom`` and ``AppendParam`` in
``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from demitasse.core.frozen_struct import FrozenStruct
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.graph.filter import raise_faults
from demitasse.io.proto import LayerParameter, NetParameter, ParamSpec

AUTOMATIC = "(automatic)"  # name of the automatic tops of loss layers, which no layer can read


class Node(FrozenStruct):
    """One layer: its message and the indices of its blobs."""

    param: LayerParameter
    bottoms: tuple[int, ...]
    tops: tuple[int, ...]


class Graph(FrozenStruct):
    """Layers and blobs, wired.

    Attributes:
        blobs: Names of the blobs, in order of appearance.
        inputs: Indices of the blobs that Input layers produce.
        outputs: Indices of the blobs nobody reads, by name in alphabetical order.
    """

    nodes: tuple[Node, ...]
    blobs: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def wire(
    net: NetParameter, tops_needed: Sequence[int], origin_of: Callable[[int], str] = lambda _: ""
) -> Graph:
    """Wire a filtered net with splits, and add ``tops_needed``; one NetError names all faults."""
    names: list[str] = []
    index: dict[str, int] = {}
    unread: set[str] = set()
    nodes: list[Node] = []
    inputs: list[int] = []
    faults: list[DemitasseError] = []

    def refuse(number: int, message: str, code: ErrorCode, **details: object) -> None:
        error = NetError(message, code=code, layer=net.layer[number].name, **details)
        faults.append(error.from_line(origin_of(number)))

    for number, (param, needed) in enumerate(zip(net.layer, tops_needed, strict=True)):
        if param.propagate_down and len(param.propagate_down) != len(param.bottom):
            given, count = len(param.propagate_down), len(param.bottom)
            message = (
                f"layer {param.name!r}: got {given} propagate_down for {count} bottoms; give one "
                "for each bottom, or none"
            )
            refuse(
                number, message, ErrorCode.COUNT_MISMATCH,
                field="propagate_down", got=given, expected=count,
            )  # fmt: skip
        bottoms: list[int] = []
        for i, blob in enumerate(param.bottom):
            if blob not in unread:
                message = f"unknown bottom blob {blob!r} (layer {param.name!r}, bottom index {i})"
                refuse(number, message, ErrorCode.UNKNOWN, blob=blob)
                continue
            unread.remove(blob)
            bottoms.append(index[blob])
        tops: list[int] = []
        for i, blob in enumerate(param.top):
            in_place = i < len(param.bottom) and param.bottom[i] == blob
            if blob not in index:
                index[blob] = len(names)
                names.append(blob)
            elif not in_place:
                message = f"top blob {blob!r} of layer {param.name!r} is produced twice"
                refuse(number, message, ErrorCode.DUPLICATE, blob=blob)
            tops.append(index[blob])
            unread.add(blob)
        if param.type == "Input":
            inputs += tops
        for _ in range(len(param.top), needed):
            tops.append(len(names))
            names.append(AUTOMATIC)
        nodes.append(Node(param, tuple(bottoms), tuple(tops)))
    raise_faults(faults)
    outputs = tuple(index[name] for name in sorted(unread, key=str.encode))
    return Graph(tuple(nodes), tuple(names), tuple(inputs), outputs)


Shape = tuple[int, ...]

FACTORS = ("lr_mult", "decay_mult")


@dataclass(eq=False)
class Param:
    """One parameter of a layer.

    Attributes:
        number: Index among the net's parameters, sharers included.
        index: Index in its layer, whose index is ``layer``.
        name: Name for sharing; empty for none.
        owner: Parameter whose memory is shared; None for a learnable parameter.
        lr_mult: Factor of the learning rate; of a sharer, the owner's counts.
        decay_mult: Factor of the weight decay, likewise.
        frozen: True if updates leave it unchanged, momentum included.
        given: Those of the two factors that were written.
    """

    number: int
    layer: int
    index: int
    shape: Shape
    name: str = ""
    owner: Param | None = None
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    frozen: bool = False
    given: set[str] = field(default_factory=set)

    @property
    def display_name(self) -> str:
        """Name of the parameter, or its index in the layer."""
        return self.name or str(self.index)


def append_params(
    params: list[Param], layer: int, message: LayerParameter, shapes: Sequence[Shape]
) -> None:
    """Append the parameters of one layer, which share those of earlier layers by name."""
    if len(message.param) > len(shapes):
        got, expected, code = len(message.param), len(shapes), ErrorCode.COUNT_MISMATCH
        text = f"{got} param specs are given for {expected} parameters"
        raise NetError(text, code=code, field="param", got=got, expected=expected)
    for index, shape in enumerate(shapes):
        spec = message.param[index] if index < len(message.param) else ParamSpec()
        param = Param(len(params), layer, index, shape, spec.name)
        if spec.name:
            param.owner = next((p for p in params if p.name == spec.name), None)
        if param.owner is not None:
            _check_fit(param, param.owner, permissive=spec.share_mode == ParamSpec.PERMISSIVE)
        _set_factors(param.owner or param, spec)
        params.append(param)


def _check_fit(param: Param, owner: Param, *, permissive: bool) -> None:
    name, mine, theirs = param.name, param.shape, owner.shape
    if permissive:
        got, expected, code = prod(mine), prod(theirs), ErrorCode.COUNT_MISMATCH
        if got != expected:
            message = (
                f"shared parameter {name!r} {mine} has {got} values, its owner {theirs} has "
                f"{expected}"
            )
            raise NetError(message, code=code, param=name, got=got, expected=expected)
    elif mine != theirs:
        message = f"shared parameter {name!r} has shape {mine}, its owner has {theirs}"
        if prod(mine) == prod(theirs):
            message += "; share_mode: PERMISSIVE compares counts only"
        code = ErrorCode.SHAPE_MISMATCH
        raise NetError(message, code=code, param=name, got=mine, expected=theirs)


def _set_factors(owner: Param, spec: ParamSpec) -> None:
    """Set multipliers that a spec gives; a sharer may set a multiplier that is still unset."""
    for factor in FACTORS:
        if not spec.HasField(factor):
            continue
        value, known = getattr(spec, factor), getattr(owner, factor)
        if factor in owner.given and value != known:
            name, code = spec.name, ErrorCode.CONFLICT
            message = f"shared parameter {name!r} has {factor} {value}, its owner has {known}"
            raise NetError(message, code=code, param=name, field=factor, got=value, expected=known)
        setattr(owner, factor, value)
        owner.given.add(factor)


class LayerSetup(FrozenStruct):
    """Facts after a layer's setup: True for a parameter that learns, a top with a loss weight.

    Attributes:
        allow_force: For each bottom, True if ``force_backward`` may ask for its gradient.
        without_gradient: The bottoms that have no gradient in any case: labels, indices, ...
    """

    params: tuple[bool, ...] = ()
    losses: tuple[bool, ...] = ()
    allow_force: tuple[bool, ...] = ()
    without_gradient: frozenset[int] = frozenset()


@dataclass
class Needs:
    """True for each layer whose backward pass runs, and each gradient that is computed."""

    layers: list[bool]
    bottoms: list[list[bool]]
    blobs: list[bool]
    params: list[list[bool]]


def compute_backward_needs(graph: Graph, facts: Sequence[LayerSetup], force: bool = False) -> Needs:
    """Return the layers, blobs and parameters that take part in the backward pass.

    From the first layer on, a layer with a learned parameter or with a bottom that takes part does,
    and so do its tops. Then layers on which no loss depends are excluded. ``force`` includes all
    layers again. Bottoms without a gradient get none; Caffe's layers fail if asked for one.
    """
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
    _prune_without_loss(graph, facts, needs)
    if force:
        for i, (node, fact) in enumerate(zip(graph.nodes, facts, strict=True)):
            needs.layers[i] = True
            needs.params[i] = [True] * len(fact.params)
            for j, blob in enumerate(node.bottoms):
                needs.bottoms[i][j] = needs.bottoms[i][j] or fact.allow_force[j]
                blobs[blob] = blobs[blob] or needs.bottoms[i][j]
    return needs


def _prune_without_loss(graph: Graph, facts: Sequence[LayerSetup], needs: Needs) -> None:
    """Exclude layers that no loss depends on, and layers whose tops need no gradient."""
    under_loss: set[int] = set()
    skippable: set[int] = set()
    for i in reversed(range(len(graph.nodes))):
        node, losses = graph.nodes[i], facts[i].losses
        contributes = any(
            (j < len(losses) and losses[j]) or top in under_loss for j, top in enumerate(node.tops)
        )
        skipped = needs.layers[i] and all(top in skippable for top in node.tops)
        if skipped or not contributes:
            needs.layers[i] = False
            needs.bottoms[i] = [False] * len(node.bottoms)
        if contributes:
            under_loss.update(node.bottoms)
        skippable.update(
            b for b, need in zip(node.bottoms, needs.bottoms[i], strict=True) if not need
        )
