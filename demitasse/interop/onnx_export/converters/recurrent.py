"""Converters of recurrent layers to a Scan over time.

ONNX's LSTM and RNN have no counterpart of Caffe's ``cont``, which starts a new sequence within a
pass. The exported model does not keep states between passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder, OneStep
from demitasse.layers.recurrent import LSTM, RNN, LSTMUnit, RecurrentLayer


def _lstm(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a Scan with hidden state and cell state."""
    layer = node.layer_as(LSTM)

    def one(states: Sequence[str], z: str, cont: str) -> list[str]:
        hidden, cells = states
        before = graph.add("Mul", cont, hidden)
        weight = graph.param(layer.blobs[layer.recurrent_index], "hidden_weight", transpose=True)
        inputs = graph.add("Add", z, graph.add("MatMul", before, weight))
        c, h = _lstm_step(graph, inputs, cells, cont, layer.h)
        return [h, c]

    [hidden, *states] = _scan(node, layer, graph, one)
    graph.add("Identity", hidden, to=node.tops[0])
    for state, top in zip(states, node.tops[1:], strict=False):
        graph.reshape(state, top.sizes, to=top)


def _lstm_step(
    graph: GraphBuilder, inputs: str, cells: str, cont: str, size: int
) -> tuple[str, str]:
    """Add one step of an LSTM.

    Args:
        graph: The graph.
        inputs: Inputs of the gates i, f, o and g. Shape: (N, 4H).
        cells: Cell state. Shape: (N, H).
        cont: Sequence indicators. Shape: (N, 1).
        size: Number of cells, H.

    Returns:
        The new cell state and hidden state, (N, H).
    """
    names = [graph.name(gate) for gate in ("i", "f", "o", "g")]
    graph.add_several("Split", inputs, graph.ints([size] * 4), to=names, axis=1)
    i, f, o = (graph.add("Sigmoid", name) for name in names[:3])
    g = graph.add("Tanh", names[3])
    kept = graph.add("Mul", graph.add("Mul", cont, f), cells)
    c = graph.add("Add", kept, graph.add("Mul", i, g))
    return c, graph.add("Mul", o, graph.add("Tanh", c))


def _rnn(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a Scan with the hidden state, and the output layer."""
    layer = node.layer_as(RNN)

    def one(states: Sequence[str], z: str, cont: str) -> list[str]:
        before = graph.add("Mul", cont, states[0])
        weight = graph.param(layer.blobs[layer.recurrent_index], "hidden_weight", transpose=True)
        return [graph.add("Tanh", graph.add("Add", z, graph.add("MatMul", before, weight)))]

    [hidden, *states] = _scan(node, layer, graph, one)
    weight = graph.param(layer.blobs[layer.output_index], "output_weight", transpose=True)
    bias = graph.param(layer.blobs[layer.output_index + 1], "output_bias")
    graph.add("Tanh", graph.add("Add", graph.add("MatMul", hidden, weight), bias), to=node.tops[0])
    for state, top in zip(states, node.tops[1:], strict=False):
        graph.reshape(state, top.sizes, to=top)


def _scan(node: LayerNode, layer: RecurrentLayer, graph: GraphBuilder, one: OneStep) -> list[str]:
    """Add a Scan over time.

    Args:
        node: The layer with its values.
        layer: The layer.
        graph: The graph.
        one: Function that adds one step: (states, gate inputs (N, G * H), cont (N, 1)) -> states.

    Returns:
        The first state of all steps, (T, N, H), and the final states, (N, H).
    """
    x, cont = node.bottoms[:2]
    n = x.sizes[1]
    rows = x.name if len(x.shape) == 3 else graph.reshape(x, [*x.sizes[:2], layer.d])
    z = graph.add("MatMul", rows, graph.param(layer.blobs[0], "weight", transpose=True))
    z = graph.add("Add", z, graph.param(layer.blobs[1], "bias"))
    if layer.has_static:
        static = graph.reshape(node.bottoms[2], [n, layer.s])
        weight = graph.param(layer.blobs[2], "static_weight", transpose=True)
        z = graph.add("Add", z, graph.add("MatMul", static, weight))
    marks = graph.add("Unsqueeze", cont, graph.ints([2]))
    if layer.exposed:
        given = node.bottoms[layer.first_state :]
        begin = [graph.reshape(state, [n, layer.h]) for state in given]
    else:
        nothing = graph.add("ConstantOfShape", graph.sizes([n, layer.h]), value=graph.tensor([0.0]))
        begin = [nothing] * layer.states
    return graph.scan(one, begin, [z, marks])


def _lstm_unit(node: LayerNode, graph: GraphBuilder) -> None:
    """Add one step of an LSTM."""
    layer, (cells, gates, cont) = node.layer_as(LSTMUnit), node.bottoms
    n = cells.sizes[1]
    inputs = graph.reshape(gates, [n, 4 * layer.h])
    before, goes_on = graph.reshape(cells, [n, layer.h]), graph.reshape(cont, [n, 1])
    found = _lstm_step(graph, inputs, before, goes_on, layer.h)
    for state, top in zip(found, node.tops, strict=True):
        graph.reshape(state, top.sizes, to=top)


CONVERTERS: Mapping[str, Converter] = {"LSTM": _lstm, "LSTMUnit": _lstm_unit, "RNN": _rnn}
