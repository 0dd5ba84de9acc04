"""Converters of recurrent layers to a Scan over time.

ONNX's LSTM and RNN have no counterpart of Caffe's ``cont``, which starts a new sequence within a
pass. The exported model does not keep states between passes.
"""

from collections.abc import Iterable, Mapping, Sequence

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.onnx_export.graph import Array, Converter, GraphBuilder, OneStep, Result
from demitasse.layers.recurrent import LSTM, RNN, LSTMUnit, RecurrentLayer


def _lstm(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a Scan with hidden state and cell state."""
    layer = node.layer_as(LSTM)

    def one(states: Sequence[Array], z: Array, cont: Array) -> list[Array]:
        hidden, cells = states
        inputs = z + graph.add("MatMul", cont * hidden, _hidden_weight(layer, graph))
        c, h = _lstm_step(graph, inputs, cells, cont, layer.h)
        return [h, c]

    [hidden, *states] = _scan(node, layer, graph, one)
    return [graph.add("Identity", hidden), *_shaped(graph, states, node.tops[1:])]


def _shaped(graph: GraphBuilder, states: Iterable[Array], tops: Iterable[Value]) -> list[Array]:
    return [graph.reshape(state, top.sizes) for state, top in zip(states, tops, strict=False)]


def _lstm_step(
    graph: GraphBuilder, inputs: Array, cells: Array, cont: Array, size: int
) -> tuple[Array, Array]:
    """Add one step of an LSTM; return the new cell state and hidden state.

    Shapes: inputs of the gates i, f, o and g (N, 4 size), cells (N, size), cont (N, 1)
    -> twice (N, size).
    """
    gates = graph.add_several("Split", inputs, [size] * 4, names=["i", "f", "o", "g"], axis=1)
    i, f, o = (graph.add("Sigmoid", gate) for gate in gates[:3])
    g = graph.add("Tanh", gates[3])
    c = cont * f * cells + i * g
    return c, o * graph.add("Tanh", c)


def _rnn(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a Scan with the hidden state, and the output layer."""
    layer = node.layer_as(RNN)

    def one(states: Sequence[Array], z: Array, cont: Array) -> list[Array]:
        before = cont * states[0]
        return [graph.add("Tanh", z + graph.add("MatMul", before, _hidden_weight(layer, graph)))]

    [hidden, *states] = _scan(node, layer, graph, one)
    weight = graph.param(layer.blobs[layer.output_index], "output_weight", transpose=True)
    bias = graph.param(layer.blobs[layer.output_index + 1], "output_bias")
    y = graph.add("Tanh", graph.add("MatMul", hidden, weight) + bias)
    return [y, *_shaped(graph, states, node.tops[1:])]


def _hidden_weight(layer: RecurrentLayer, graph: GraphBuilder) -> Array:
    return graph.param(layer.blobs[layer.recurrent_index], "hidden_weight", transpose=True)


def _scan(node: LayerNode, layer: RecurrentLayer, graph: GraphBuilder, one: OneStep) -> list[Array]:
    """Add a Scan over time, of steps (states, gate inputs (N, G * H), cont (N, 1)) -> states.

    Returns the first state of all steps, (T, N, H), and the final states, (N, H).
    """
    x, cont = node.bottoms[:2]
    n = x.sizes[1]
    rows: Array | Value = x
    if len(x.shape) != 3:
        rows = graph.reshape(x, [*x.sizes[:2], layer.d])
    z = graph.add("MatMul", rows, graph.param(layer.blobs[0], "weight", transpose=True))
    z += graph.param(layer.blobs[1], "bias")
    if layer.has_static:
        static = graph.reshape(node.bottoms[2], [n, layer.s])
        weight = graph.param(layer.blobs[2], "static_weight", transpose=True)
        z += graph.add("MatMul", static, weight)
    marks = graph.add("Unsqueeze", cont, [2])
    if layer.exposed:
        given = node.bottoms[layer.first_state :]
        begin = [graph.reshape(state, [n, layer.h]) for state in given]
    else:
        nothing = graph.add("ConstantOfShape", graph.sizes([n, layer.h]), value=graph.tensor(0.0))
        begin = [nothing] * layer.states
    return graph.scan(one, begin, [z, marks])


def _lstm_unit(node: LayerNode, graph: GraphBuilder) -> Result:
    layer, (cells, gates, cont) = node.layer_as(LSTMUnit), node.bottoms
    n = cells.sizes[1]
    inputs = graph.reshape(gates, [n, 4 * layer.h])
    before, goes_on = graph.reshape(cells, [n, layer.h]), graph.reshape(cont, [n, 1])
    return _shaped(graph, _lstm_step(graph, inputs, before, goes_on, layer.h), node.tops)


CONVERTERS: Mapping[str, Converter] = {"LSTM": _lstm, "LSTMUnit": _lstm_unit, "RNN": _rnn}
