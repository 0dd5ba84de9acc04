"""Converters of recurrent operators."""

from collections.abc import Mapping

import numpy as np

from demitasse.interop.onnx_import.model import Node, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, Result

GATES = [0, 2, 1, 3]
"""Caffe's gates i, f, o, g as indices of ONNX's gates i, o, f, g."""

USUAL = [b"Sigmoid", b"Tanh", b"Tanh"]
"""Activations of one direction."""


def _lstm(node: Node, net: NetBuilder) -> Result:
    """Add one LSTM for each direction, with sequences that start in the first step."""
    _check_options(node)
    ways = {b"forward": [False], b"reverse": [True], b"bidirectional": [False, True]}
    backwards = ways[node.attributes.get("direction", b"forward")]
    done = [_one_way(node, net, number, back) for number, back in enumerate(backwards)]
    results = []
    for output, value in enumerate(node.outputs):
        if value is None:
            results.append("")
            continue
        axis, shape = 1 if output == 0 else 0, list(value.shape)
        shape[axis] = 1
        parts = [net.reshape(one[output], tuple(shape)) for one in done]
        results.append(net.concat(parts, axis, value.shape))
    net.notes.append(
        f"{node.label} takes sequences of {node.x.shape[0]} steps, {node.x.shape[1]} per batch"
    )
    return results


def _one_way(node: Node, net: NetBuilder, number: int, back: bool) -> list[str]:
    """Add an LSTM in one direction; return hidden states (T, N, H) and the final states."""
    weight, recurrent = node.array(1, "weight")[number], node.array(2, "recurrent")[number]
    steps, items, _ = node.x.shape
    hidden = recurrent.shape[1]
    none = np.zeros(8 * hidden, np.float32)
    bias = none if node.optional_input(3) is None else node.array(3, "bias")[number]
    order = np.arange(4 * hidden).reshape(4, hidden)[GATES].reshape(-1)  # rows as in Caffe
    both = bias[: 4 * hidden] + bias[4 * hidden :]
    weights = [one[order] for one in (weight, both, recurrent)]
    wanted = [len(node.outputs) > place and node.outputs[place] is not None for place in range(3)]
    begin = [node.optional_input(position) for position in (5, 6)]
    begin = [
        None if one is None or (one.array is not None and not one.array.any()) else one
        for one in begin  # None for zeros
    ]
    exposed = wanted[2] or any(one is not None for one in begin)
    marks = np.ones((steps, items), np.float32)
    marks[0] = 1 if exposed else 0
    x, reverse = net.blob(node.x), np.arange(steps)[::-1]
    bottoms = [net.gather(x, 0, reverse) if back else x, net.constant(marks)]
    shapes, state = [(steps, items, hidden)], (1, items, hidden)
    if exposed:
        empty = np.zeros(state, np.float32)
        bottoms += [
            net.constant(empty) if one is None else net.slice(net.blob(one), 0, number, number + 1)
            for one in begin
        ]
        shapes += [state, state]
    fields = {"num_output": hidden, "expose_hidden": exposed}
    tops = net.add_several("LSTM", bottoms, shapes, weights=weights, recurrent_param=fields)
    if exposed:
        ends = tops[1:]
        net.silence([top for top, want in zip(tops, wanted, strict=True) if not want])
    else:
        ends = [net.slice(tops[0], 0, steps - 1, steps)] if wanted[1] else [""]
    every = net.gather(tops[0], 0, reverse) if back and wanted[0] else tops[0]
    return [every, *ends]


def _check_options(node: Node) -> None:
    """Refuse options that Caffe's LSTM lacks."""
    at, steps = node.attributes, node.x.shape[0]
    activations, lengths = list(at.get("activations", USUAL)), node.optional_input(4)
    full = lengths is None or (lengths.array is not None and np.all(lengths.array == steps))
    reasons = {
        "activations other than the default": activations != USUAL * (len(activations) // 3),
        "clip": "clip" in at,
        "input_forget": bool(at.get("input_forget")),
        "layout (batch first)": bool(at.get("layout")),
        "sequence_lens": not full,
        "peepholes": node.optional_input(7) is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            refuse(f"the LSTM layer has no {reason}")


CONVERTERS: Mapping[str, Converter] = {"LSTM": _lstm}
