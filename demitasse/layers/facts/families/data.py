"""The facts about layer types: data, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.facts.kinds import LayerFacts, ParamFacts

__all__ = ["FACTS"]

FACTS: Mapping[str, LayerFacts] = {
    "AnnotatedData": LayerFacts(
        fields=("annotated_data_param", "data_param", "transform_param"),
        gradient="source",
        host=True,
        source="data_param.source",
        records=True,
    ),
    "Data": LayerFacts(
        fields=("data_param", "transform_param"),
        gradient="source",
        judge="Caffe",
        host=True,
        source="data_param.source",
        records=True,
    ),
    "DummyData": LayerFacts(fields=("dummy_data_param",), gradient="source", host=True),
    "HDF5Data": LayerFacts(
        fields=("hdf5_data_param", "data_param.prefetch"),
        gradient="source",
        judge="Caffe",
        host=True,
        source="hdf5_data_param.source",
        records=True,
    ),
    "HDF5Output": LayerFacts(
        fields=("hdf5_output_param",), gradient="none", host=True, result=True
    ),
    "ImageData": LayerFacts(
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        judge="Caffe",
        host=True,
        source="image_data_param.source",
        records=True,
    ),
    "DenseImageData": LayerFacts(
        fields=("dense_image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="dense_image_data_param.source",
        records=True,
    ),
    "ImageSegData": LayerFacts(
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="image_data_param.source",
        records=True,
    ),
    "Input": LayerFacts(fields=("input_param",), gradient="source", judge="Caffe", moves="nothing"),
    "MemoryData": LayerFacts(
        fields=("memory_data_param", "transform_param"),
        gradient="source",
        host=True,
        records=True,
    ),
    "Parameter": LayerFacts(
        fields=("parameter_param",),
        gradient="source",
        judge="Caffe",
        params=(ParamFacts("value", "value"),),
        moves="nothing",
    ),
    "Python": LayerFacts(
        fields=("python_param",),
        host=True,
        records=True,
        opaque=True,
        known=False,
    ),
    "WindowData": LayerFacts(
        fields=("window_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="window_data_param.source",
        records=True,
    ),
}
