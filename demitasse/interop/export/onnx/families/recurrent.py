"""Recurrent layers, as a Scan over time.

The operators LSTM and RNN of ONNX have no counterpart of Caffe's ``cont``, which begins a sequence
anew in the middle of a pass, so the steps are written out. What a pass ends with is not kept for
the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.graph import Graph, OneStep
from demitasse.interop.export.walk import Step
from demitasse.layers.recurrent import LSTM, RNN, LSTMUnit, RecurrentLayer

__all__ = ["CONVERTERS"]


def lstm(step: Step, graph: Graph) -> None:
    """Add a Scan with the hidden state and the cells."""
    layer = step.of(LSTM)

    def one(states: Sequence[str], z: str, cont: str) -> list[str]:
        hidden, cells = states
        before = graph.add("Mul", cont, hidden)
        weight = graph.param(layer.blobs[layer.recurrent_index], "hidden_weight", transpose=True)
        inputs = graph.add("Add", z, graph.add("MatMul", before, weight))
        c, h = lstm_step(graph, inputs, cells, cont, layer.h)
        return [h, c]

    [hidden, *states] = _scan(step, layer, graph, one)
    graph.add("Identity", hidden, to=step.tops[0])
    for state, top in zip(states, step.tops[1:], strict=False):
        graph.reshape(state, top.sizes, to=top)


def lstm_step(graph: Graph, inputs: str, cells: str, cont: str, size: int) -> tuple[str, str]:
    """Add one step of an LSTM.

    Args:
        graph: Where.
        inputs: Inputs of the gates i, f, o and g. Shape: (N, 4H).
        cells: Shape: (N, H).
        cont: Shape: (N, 1).
        size: H.

    Returns:
        The new cells and the hidden state, (N, H).
    """
    names = [graph.name(gate) for gate in ("i", "f", "o", "g")]
    graph.add_several("Split", inputs, graph.ints([size] * 4), to=names, axis=1)
    i, f, o = (graph.add("Sigmoid", name) for name in names[:3])
    g = graph.add("Tanh", names[3])
    kept = graph.add("Mul", graph.add("Mul", cont, f), cells)
    c = graph.add("Add", kept, graph.add("Mul", i, g))
    return c, graph.add("Mul", o, graph.add("Tanh", c))


def rnn(step: Step, graph: Graph) -> None:
    """Add a Scan with the hidden state, and the output layer."""
    layer = step.of(RNN)

    def one(states: Sequence[str], z: str, cont: str) -> list[str]:
        before = graph.add("Mul", cont, states[0])
        weight = graph.param(layer.blobs[layer.recurrent_index], "hidden_weight", transpose=True)
        return [graph.add("Tanh", graph.add("Add", z, graph.add("MatMul", before, weight)))]

    [hidden, *states] = _scan(step, layer, graph, one)
    weight = graph.param(layer.blobs[layer.output_index], "output_weight", transpose=True)
    bias = graph.param(layer.blobs[layer.output_index + 1], "output_bias")
    graph.add("Tanh", graph.add("Add", graph.add("MatMul", hidden, weight), bias), to=step.tops[0])
    for state, top in zip(states, step.tops[1:], strict=False):
        graph.reshape(state, top.sizes, to=top)


def _scan(step: Step, layer: RecurrentLayer, graph: Graph, one: OneStep) -> list[str]:
    """Add a Scan over time.

    Args:
        step: The layer with its values.
        layer: The layer.
        graph: Where.
        one: Adds one step: from states, gate inputs (N, G * H) and cont (N, 1) to new states.

    Returns:
        The first states of all steps, (T, N, H), and the states at the end, (N, H).
    """
    x, cont = step.bottoms[:2]
    n = x.sizes[1]
    rows = x.name if len(x.shape) == 3 else graph.reshape(x, [*x.sizes[:2], layer.d])
    z = graph.add("MatMul", rows, graph.param(layer.blobs[0], "weight", transpose=True))
    z = graph.add("Add", z, graph.param(layer.blobs[1], "bias"))
    if layer.has_static:
        static = graph.reshape(step.bottoms[2], [n, layer.s])
        weight = graph.param(layer.blobs[2], "static_weight", transpose=True)
        z = graph.add("Add", z, graph.add("MatMul", static, weight))
    marks = graph.add("Unsqueeze", cont, graph.ints([2]))
    if layer.exposed:
        given = step.bottoms[layer.first_state :]
        begin = [graph.reshape(state, [n, layer.h]) for state in given]
    else:
        nothing = graph.add("ConstantOfShape", graph.sizes([n, layer.h]), value=graph.tensor([0.0]))
        begin = [nothing] * layer.states
    return graph.scan(one, begin, [z, marks])


def lstm_unit(step: Step, graph: Graph) -> None:
    """Add one step of an LSTM."""
    layer, (cells, gates, cont) = step.of(LSTMUnit), step.bottoms
    n = cells.sizes[1]
    inputs = graph.reshape(gates, [n, 4 * layer.h])
    before, goes_on = graph.reshape(cells, [n, layer.h]), graph.reshape(cont, [n, 1])
    found = lstm_step(graph, inputs, before, goes_on, layer.h)
    for state, top in zip(found, step.tops, strict=True):
        graph.reshape(state, top.sizes, to=top)


CONVERTERS: Mapping[str, Converter] = {"LSTM": lstm, "LSTMUnit": lstm_unit, "RNN": rnn}
