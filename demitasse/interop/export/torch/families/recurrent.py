"""Recurrent layers, step by step: PyTorch's own cannot begin a sequence anew in the middle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.torch.code import Code
from demitasse.interop.export.torch.converter import Converter
from demitasse.interop.export.walk import Step, Value
from demitasse.layers.recurrent import LSTM, RNN, LSTMUnit, RecurrentLayer

__all__ = ["CONVERTERS"]


def lstm(step: Step, code: Code) -> None:
    """Add a loop with the hidden state and the cells."""
    _loop(step, code, step.of(LSTM), "lstm", {}, 3)


def rnn(step: Step, code: Code) -> None:
    """Add a loop with the hidden state, and the output layer."""
    layer = step.of(RNN)
    more = {
        "output_weight": layer.blobs[layer.output_index].cpu_data(),
        "output_bias": layer.blobs[layer.output_index + 1].cpu_data(),
    }
    _loop(step, code, layer, "rnn", more, 2)


def _loop(
    step: Step,
    code: Code,
    layer: RecurrentLayer,
    name: str,
    more: Mapping[str, np.ndarray],
    results: int,
) -> None:
    blobs = layer.blobs
    weights = code.parameters(
        step,
        weight=blobs[0].cpu_data(),
        bias=blobs[1].cpu_data(),
        static_weight=blobs[2].cpu_data() if layer.has_static else None,
        hidden_weight=blobs[layer.recurrent_index].cpu_data(),
        **more,
    )
    x, cont, *others = map(code.variable, step.bottoms)
    arguments = [x, cont, weights]
    if others:
        arguments += others if layer.has_static else ["None", *others]
    names: list[Value | str] = [*step.tops]
    names += ["unused"] * (results - len(names))
    code.let_several(code.call(name, *arguments), names)


def lstm_unit(step: Step, code: Code) -> None:
    """Add one step of an LSTM."""
    layer, (cells, gates, cont) = step.of(LSTMUnit), step.bottoms
    n = cells.sizes[1]
    found = code.call(
        "lstm_step",
        code.reshaped(code.variable(gates), [n, 4 * layer.h]),
        code.reshaped(code.variable(cells), [n, layer.h]),
        code.reshaped(code.variable(cont), [n, 1]),
    )
    states = code.let_several(found, ["cells", "hidden"])
    for state, top in zip(states, step.tops, strict=True):
        code.let(code.reshaped(state, top.sizes), top)


CONVERTERS: Mapping[str, Converter] = {"LSTM": lstm, "LSTMUnit": lstm_unit, "RNN": rnn}
