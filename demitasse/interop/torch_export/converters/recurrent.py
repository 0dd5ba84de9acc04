"""Converters of recurrent layers to loops over time.

PyTorch's LSTM and RNN have no counterpart of Caffe's ``cont``, which starts a new sequence within a
pass.
"""

from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.torch_export.code import Converter, ModuleCode, Result
from demitasse.layers.recurrent import LSTM, RNN, LSTMUnit, RecurrentLayer


def _lstm(node: LayerNode, code: ModuleCode) -> Result:
    return _loop(node, code, node.layer_as(LSTM), "lstm", {}, 3)


def _rnn(node: LayerNode, code: ModuleCode) -> Result:
    layer = node.layer_as(RNN)
    more = {
        "output_weight": layer.blobs[layer.output_index].cpu_data(),
        "output_bias": layer.blobs[layer.output_index + 1].cpu_data(),
    }
    return _loop(node, code, layer, "rnn", more, 2)


def _loop(
    node: LayerNode, code: ModuleCode, layer: RecurrentLayer, name: str,
    more: Mapping[str, np.ndarray], results: int,
) -> Result:  # fmt: skip
    blobs = layer.blobs
    weights = code.parameters(
        node,
        weight=blobs[0].cpu_data(),
        bias=blobs[1].cpu_data(),
        static_weight=blobs[2].cpu_data() if layer.has_static else None,
        hidden_weight=blobs[layer.recurrent_index].cpu_data(),
        **more,
    )
    x, cont, *others = node.bottoms
    static = [] if layer.has_static or not others else ["None"]
    call = code.call(name, x, cont, weights, *static, *others)
    return code.let_tops(call, node.tops, results)


def _lstm_unit(node: LayerNode, code: ModuleCode) -> Result:
    layer, (cells, gates, cont) = node.layer_as(LSTMUnit), node.bottoms
    n = cells.sizes[1]
    found = code.call(
        "lstm_step",
        code.reshaped(gates, [n, 4 * layer.h]),
        code.reshaped(cells, [n, layer.h]),
        code.reshaped(cont, [n, 1]),
    )
    states = code.let_several(found, ["cells", "hidden"])
    return [code.reshaped(state, top.sizes) for state, top in zip(states, node.tops, strict=True)]


CONVERTERS: Mapping[str, Converter] = {"LSTM": _lstm, "LSTMUnit": _lstm_unit, "RNN": _rnn}
