"""Drawings of nets: layers as boxes, blobs as octagons.

``graphs`` draws SVG without other libraries, and pixels with Pillow. If pydot and Graphviz are
installed, they are used instead.

Source: Caffe, ``python/caffe/draw.py``.
"""

import os
import shutil
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from demitasse.compat.pycaffe.graphs import dot
from demitasse.core.atomic import write_bytes
from demitasse.io.proto import (
    ConvolutionParameter,
    LayerParameter,
    NetParameter,
    PoolingParameter,
    upgrade_net,
)

LAYER_STYLE_DEFAULT = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}
NEURON_LAYER_STYLE = {"shape": "record", "fillcolor": "#90EE90", "style": "filled"}
BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}

COLORS = {
    "Convolution": "#FF5050",
    "Deconvolution": "#FF5050",
    "Pooling": "#FF9900",
    "InnerProduct": "#CC33FF",
}

LEARNING = ("Convolution", "Deconvolution", "InnerProduct")

NO_LABEL = '""'


def get_pooling_types_dict() -> dict[int, str]:
    """Return the names of pooling methods by their values."""
    return {number: name for name, number in PoolingParameter.PoolMethod.items()}


def get_edge_label(layer: LayerParameter) -> str:
    """Return the label of the edge to a layer's top: channels, or batch size."""
    match layer.type:
        case "Data":
            return f"Batch {layer.data_param.batch_size}"
        case "Convolution" | "Deconvolution":
            return str(layer.convolution_param.num_output)
        case "InnerProduct":
            return str(layer.inner_product_param.num_output)
    return NO_LABEL


def get_layer_lr_mult(layer: LayerParameter) -> tuple[float, float]:
    """Return the factors of the learning rate for a layer's weight and bias.

    Raises:
        ValueError: The layer is neither a convolution nor an inner product, or has more parameters.
    """
    if layer.type not in LEARNING:
        message = f"{layer.type} layers have no weight and bias; only {', '.join(LEARNING)} do"
        raise ValueError(message)
    factors = [param.lr_mult for param in layer.param]
    if len(factors) > 2:
        message = f"layer {layer.name!r} has {len(factors)} params, but only a weight and a bias"
        raise ValueError(message)
    weight, bias = [*factors, 1.0, 1.0][:2]
    return weight, bias


def get_layer_label(layer: LayerParameter, rankdir: str, display_lrm: bool = False) -> str:
    """Return the text in a layer's box, in quotes; several lines if ``rankdir`` is sideways.

    With ``display_lrm`` the text has the factors of the learning rate.
    """
    kind = layer.type
    if kind == "Pooling":
        kind = f"{kind} {get_pooling_types_dict()[layer.pooling_param.pool]}"
    parts = [layer.name, f"({kind})"]
    if layer.type == "Pooling":
        parts += _window(layer.pooling_param)
    elif layer.type in {"Convolution", "Deconvolution"}:
        parts += _window(layer.convolution_param)
    if display_lrm and layer.type in LEARNING:
        weight, bias = get_layer_lr_mult(layer)
        if weight or bias:
            parts.append(f"lr mult: {weight:.1f}, {bias:.1f}")
    separator = " " if rankdir in {"TB", "BT"} else r"\n"
    return f'"{separator.join(parts)}"'


def _window(param: PoolingParameter | ConvolutionParameter) -> list[str]:
    if isinstance(param, PoolingParameter) and param.global_pooling:
        return ["kernel size: all"]
    named = {
        "kernel size": _sides(param.kernel_size, param.kernel_h, param.kernel_w, 1),
        "stride": _sides(param.stride, param.stride_h, param.stride_w, 1),
        "pad": _sides(param.pad, param.pad_h, param.pad_w, 0),
    }
    return [
        # equal sides are shown once
        f"{name}: {'x'.join(map(str, sides if len(set(sides)) > 1 else sides[:1]))}"
        for name, sides in named.items()
    ]


def _sides(given: int | Iterable[int], height: int, width: int, default: int) -> list[int]:
    if isinstance(given, int):
        return [height, width] if height or width else [given]
    return list(given) or ([height, width] if height or width else [default])


def choose_color_by_layertype(layertype: str) -> str:
    """Return the color of layers of a type, ``#RRGGBB``."""
    return COLORS.get(layertype, LAYER_STYLE_DEFAULT["fillcolor"])


def get_pydot_graph(
    caffe_net: NetParameter, rankdir: str, label_edges: bool = True, phase: int | None = None,
    display_lrm: bool = False,
) -> dot.Dot:  # fmt: skip
    """Return the graph of a net, after an upgrade of layers in old formats.

    ``rankdir`` is TB, BT, LR or RL: from top to bottom, ... ``phase`` is TRAIN or TEST for the
    layers of that phase, or None for all. ``label_edges`` adds channels and batch sizes,
    ``display_lrm`` the factors of the learning rate.

    Raises:
        ValueError: A layer has both ``include`` and ``exclude``.
    """
    library = _library()
    net = NetParameter.FromString(caffe_net.SerializePartialToString())
    upgrade_net(net)
    nodes: dict[str, dot.Node] = {}
    edges = []
    for layer in net.layer:
        if phase is not None and not _in_phase(layer, phase):
            continue
        name = f"{layer.name}_{layer.type}"
        in_place = len(layer.bottom) == 1 and list(layer.bottom) == list(layer.top)
        style = {**LAYER_STYLE_DEFAULT, "fillcolor": choose_color_by_layertype(layer.type)}
        label = get_layer_label(layer, rankdir, display_lrm)
        nodes[name] = library.Node(label, **(NEURON_LAYER_STYLE if in_place else style))
        for blob in layer.bottom:
            nodes[f"{blob}_blob"] = library.Node(blob, **BLOB_STYLE)
            edges.append((f"{blob}_blob", name, NO_LABEL))
        for blob in layer.top:
            # a blob without readers keeps this plain style: the net's outputs stand out
            nodes[f"{blob}_blob"] = library.Node(blob)
            edges.append((name, f"{blob}_blob", get_edge_label(layer) if label_edges else NO_LABEL))
    graph: dot.Dot = library.Dot(net.name or "Net", graph_type="digraph", rankdir=rankdir)
    for node in nodes.values():
        graph.add_node(node)
    for source, target, label in edges:
        graph.add_edge(library.Edge(nodes[source], nodes[target], label=label))
    return graph


def _library() -> ModuleType:
    """Return pydot if Graphviz is installed, else the replacement ``dot``."""
    if shutil.which("dot"):
        for name in ("pydotplus", "pydot"):
            if find_spec(name):
                return import_module(name)
    return dot


def _in_phase(layer: LayerParameter, phase: int) -> bool:
    """Return True if a layer's rules include a phase; levels and stages are ignored."""
    if layer.include and layer.exclude:
        message = f"layer {layer.name!r} has both include and exclude; only one of them may be"
        raise ValueError(message)
    if layer.include:
        return any(rule.phase == phase or not rule.HasField("phase") for rule in layer.include)
    return not any(rule.HasField("phase") and rule.phase == phase for rule in layer.exclude)


def draw_net(
    caffe_net: NetParameter, rankdir: str, ext: str = "png", phase: int | None = None,
    display_lrm: bool = False,
) -> bytes:  # fmt: skip
    """Return a drawing of a net as the contents of a file; see ``get_pydot_graph``.

    ``ext`` is ``svg``, ``png`` or another format of pixels, or ``raw`` for Graphviz's language.

    Raises:
        ConfigError: The format is unknown, or needs Pillow, which is not installed.
    """
    graph = get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm)
    return graph.create(format=ext)


def draw_net_to_file(
    caffe_net: NetParameter, filename: str | bytes | os.PathLike[str], rankdir: str = "LR",
    phase: int | None = None, display_lrm: bool = False,
) -> None:  # fmt: skip
    """Draw a net into a file; the file's extension says how. See ``draw_net``."""
    file = Path(os.fsdecode(filename))
    write_bytes(file, draw_net(caffe_net, rankdir, file.suffix[1:], phase, display_lrm))
