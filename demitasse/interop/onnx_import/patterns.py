"""Patterns: nodes of a model that one layer computes together."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

from demitasse.errors import NetError
from demitasse.interop.onnx_import.converters.shapes import pad_value, pads_of
from demitasse.interop.onnx_import.model import Model, Node, Tensor

FAULTS = NetError, LookupError, ValueError, TypeError, ArithmeticError
"""Errors of nodes whose attributes or inputs are inconsistent."""

HALF_ROOT = math.sqrt(0.5)

SWISHES = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}
"""Operator whose result is multiplied by its input -> the operator of both."""


class Match(NamedTuple):
    """Nodes that are one.

    Attributes:
        last: The last of them.
        node: Node in its place.
        inner: Earlier nodes, which no other node reads.
    """

    last: Node
    node: Node
    inner: Sequence[Node]


class Graph:
    """Nodes of a model by the values between them.

    Attributes:
        writers: Value -> the node that computes it.
    """

    def __init__(self, model: Model) -> None:
        self.writers = {
            one.name: node for node in model.nodes for one in node.outputs if one is not None
        }
        self._outputs = set(model.outputs)
        self._readers: dict[str, list[Node]] = {}
        for node in model.nodes:
            for one in node.inputs:
                if one is not None:
                    self._readers.setdefault(one.name, []).append(node)

    def only_reader(self, node: Node) -> Node | None:
        """Return the node that alone reads the first output, which is no output of the model."""
        found = self._readers.get(node.y.name, [])
        return found[0] if len(found) == 1 and node.y.name not in self._outputs else None


def fused_nodes(model: Model) -> list[Node]:
    """Return the nodes of a model, with one node for each pattern."""
    nodes, graph = {id(node): node for node in model.nodes}, Graph(model)
    for node in model.nodes:
        match = None
        with suppress(*FAULTS):  # the node's converter tells what is wrong
            match = PATTERNS[node.op](node, graph) if node.op in PATTERNS else None
        if match is not None:
            for one in match.inner:
                nodes.pop(id(one), None)
            nodes[id(match.last)] = match.node
    return [nodes[id(node)] for node in model.nodes if id(node) in nodes]


def _shuffle(turn: Node, graph: Graph) -> Match | None:
    """Match a transposition of groups of channels, between two reshapes, by its Transpose."""
    first, last = graph.writers.get(turn.x.name), graph.only_reader(turn)
    if first is None or last is None or graph.only_reader(first) is None:
        return None
    if first.op != "Reshape" or last.op != "Reshape" or first.x.shape != last.y.shape:
        return None
    table, shape = turn.x.shape, first.x.shape
    order = [*turn.attributes.get("perm", ())]
    swaps = order == [0, 2, 1, *range(3, len(table))]
    if not swaps or len(shape) < 2 or (table[0], *table[3:]) != (shape[0], *shape[2:]):
        return None
    group = {"group": table[1]}
    node = Node("ShuffleChannel", last.name, last.opset, [first.x], last.outputs, group)
    return Match(last, node, [first, turn])


def _padded_convolution(conv: Node, graph: Graph) -> Match | None:
    """Match a Pad by zeros before a convolution, which adds them itself, by its Conv."""
    pad = graph.writers.get(conv.x.name)
    if pad is None or pad.op != "Pad" or graph.only_reader(pad) is not conv or pad_value(pad):
        return None
    attributes = dict(conv.attributes)
    rule = attributes.pop("auto_pad", b"NOTSET")
    constant = pad.attributes.get("mode", b"constant") == b"constant"
    before, after = pads_of(pad)
    others = any((*before[:2], *after[:2])) or min((*before, *after)) < 0
    if not constant or rule not in {b"NOTSET", b"VALID"} or others:
        return None
    pads = *before[2:], *after[2:]
    own = attributes.get("pads") if rule == b"NOTSET" else None
    attributes["pads"] = [sum(pair) for pair in zip(pads, own or [0] * len(pads), strict=True)]
    node = replace(conv, inputs=[pad.x, *conv.inputs[1:]], attributes=attributes)
    return Match(conv, node, [pad])


def _swish(product: Node, graph: Graph) -> Match | None:
    """Match x sigmoid(x), or x times its hard sigmoid, by its Mul."""
    for x, other in permutations(product.inputs, 2):
        gate = None if other is None else graph.writers.get(other.name)
        if x is None or gate is None or gate.op not in SWISHES or gate.x.name != x.name:
            continue
        if gate.op == "HardSigmoid":
            slope, middle = gate.attributes.get("alpha", 0.2), gate.attributes.get("beta", 0.5)
            if not (_near(slope, 1 / 6) and _near(middle, 0.5)):
                return None
        if graph.only_reader(gate) is product:
            node = Node(SWISHES[gate.op], product.name, product.opset, [x], product.outputs)
            return Match(product, node, [gate])
    return None


def _gelu(erf: Node, graph: Graph) -> Match | None:
    """Match x (1 + erf(x / sqrt(2))) / 2 by its Erf."""
    inside = graph.writers.get(erf.x.name)
    factor, x = _number(inside)
    if inside is None or x is None or factor is None or inside.op not in {"Mul", "Div"}:
        return None
    factor = 1 / factor if inside.op == "Div" else factor
    more = graph.only_reader(erf)
    if not _near(factor, HALF_ROOT) or more is None or more.op != "Add":
        return None
    one, _ = _number(more)
    if one != 1:
        return None
    inner, gain, has_x, node = [erf, more], 1.0, False, more
    if graph.only_reader(inside) is not None:
        inner.append(inside)
    while (after := graph.only_reader(node)) is not None and after.op in {"Mul", "Div"}:
        number, _ = _number(after)
        other = next((b for b in after.inputs if b is not None and b.name != node.y.name), None)
        if number is not None:
            gain *= 1 / number if after.op == "Div" else number
        elif other is not None and after.op == "Mul" and not has_x:
            has_x = True
            if other.name != x.name:
                half = graph.writers.get(other.name)
                number, source = _number(half)
                if half is None or number is None or source != x:
                    return None
                gain *= 1 / number if half.op == "Div" else number
                if graph.only_reader(half) is not None:
                    inner.append(half)
        else:
            return None
        if has_x and _near(gain, 0.5):
            return Match(after, Node("Gelu", after.name, after.opset, [x], after.outputs), inner)
        inner.append(after)
        node = after
    return None


def _number(node: Node | None) -> tuple[float | None, Tensor | None]:
    """Return the constant scalar of a product or sum, and the other operand."""
    if node is None or node.op not in {"Mul", "Div", "Add"}:
        return None, None
    first, second = node.optional_input(0), node.optional_input(1)
    if first is None or second is None:
        return None, None
    for number, other in ((second, first), (first, second)):
        if number.array is not None and number.array.size == 1:
            value = float(number.array.reshape(()))
            if node.op == "Div" and (number is first or not value):
                return None, None
            return value, other
    return None, None


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)


PATTERNS = {
    "Conv": _padded_convolution, "Erf": _gelu, "Mul": _swish, "Transpose": _shuffle
}  # fmt: skip
"""Operator -> what matches a pattern around a node of it."""
