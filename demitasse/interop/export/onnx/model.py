"""A net as a model of ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from demitasse.errors import DemitasseError
from demitasse.interop.export.onnx.files import Model
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.onnx.library import library
from demitasse.interop.export.onnx.preprocess import Preprocess, preprocess
from demitasse.interop.export.onnx.table import CONVERTERS
from demitasse.interop.export.walk import Step, Value, Walk
from demitasse.version import __version__

__all__ = ["model_of"]


def model_of(walk: Walk, name: str, opset: int, how: Preprocess | None = None) -> Model:
    """Write a net down.

    Args:
        walk: The net.
        name: What it is called.
        opset: Version of the operators.
        how: What is done to images first; None for nothing.

    Raises:
        DemitasseError: A layer cannot be written; says which.
    """
    onnx = library("onnx")
    names = [value.name for value in walk.inputs]
    names += [top.name for step in walk.steps for top in step.tops] + [*walk.outputs]
    graph = Graph(opset, names)
    renamed: dict[str, str] = {}
    for value in walk.inputs:
        graph.know(value)
    if how is not None:
        image = how.chosen(walk.inputs)
        renamed[image.name] = preprocess(how, image, graph)
    for step in walk.steps:
        _write(step, graph, renamed)
    for output, value in walk.outputs.items():
        if output != value.name:
            graph.add("Identity", renamed.get(value.name, value.name), to=output)
    inputs = [_info(value, whole=how is not None and how.uint8 and value.name in renamed)
              for value in walk.inputs]  # fmt: skip
    outputs = [_info(value, output) for output, value in walk.outputs.items()]
    between = [
        _info(top) for step in walk.steps for top in step.tops if top.name not in walk.outputs
    ]
    made = onnx.helper.make_graph(graph.nodes, name or "net", inputs, outputs, value_info=between)
    imports = [onnx.helper.make_opsetid("", opset)]
    message = onnx.helper.make_model(
        made,
        opset_imports=imports,
        ir_version=onnx.helper.find_min_ir_version_for(imports),
        producer_name="demitasse",
        producer_version=__version__,
        doc_string=f"The Caffe net {name!r} in phase TEST",
    )
    return Model(message, graph.constants)


def _write(step: Step, graph: Graph, renamed: Mapping[str, str]) -> None:
    layer = step.layer
    bottoms = tuple(
        replace(value, name=renamed.get(value.name, value.name)) for value in step.bottoms
    )
    with graph.layer(layer.name):
        try:
            CONVERTERS[layer.type](replace(step, bottoms=bottoms), graph)
        except DemitasseError as error:
            raise error.at(step.place.called, layer=layer.name) from None
    for top in step.tops:
        graph.know(top)


def _info(value: Value, name: str | None = None, *, whole: bool = False) -> Any:
    """Return the name, type and shape of a value."""
    onnx = library("onnx")
    kind = onnx.TensorProto.UINT8 if whole else onnx.TensorProto.FLOAT
    sizes = [size if isinstance(size, int) else str(size) for size in value.sizes]
    return onnx.helper.make_tensor_value_info(value.name if name is None else name, kind, sizes)
