"""The facts about layer types: shapes and selections."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.facts.common import BOTTOMS, ONE_BOTTOM
from demitasse.layers.facts.kinds import ALWAYS, LayerFacts, When

__all__ = ["FACTS"]

ONE_TOP = When("with one top", lambda param, phase: len(param.top) == 1)

FACTS: Mapping[str, LayerFacts] = {
    "BatchReindex": LayerFacts(judge="Caffe", reads=BOTTOMS, holds={1: "indices"}, moves="part"),
    "Concat": LayerFacts(fields=("concat_param",), op="Concat", judge="Caffe", shares=ONE_BOTTOM),
    "Crop": LayerFacts(fields=("crop_param",), op="Crop", judge="Caffe", moves="part"),
    "Filter": LayerFacts(judge="Caffe", holds={-1: "selector"}, moves="part"),
    "Flatten": LayerFacts(fields=("flatten_param",), judge="Caffe", shares=ALWAYS),
    "Permute": LayerFacts(fields=("permute_param",), op="Permute", judge="OpenCV"),
    "Reshape": LayerFacts(fields=("reshape_param",), judge="Caffe", shares=ALWAYS),
    "ShuffleChannel": LayerFacts(fields=("shuffle_channel_param",), op="Shuffle", same_shape=True),
    "Silence": LayerFacts(gradient="none", judge="Caffe", result=True, moves="nothing"),
    "Slice": LayerFacts(fields=("slice_param",), op="Slice", judge="Caffe", shares=ONE_TOP),
    "Split": LayerFacts(op="Split", judge="Caffe", same_shape=True, shares=ALWAYS),
    "Tile": LayerFacts(fields=("tile_param",), judge="Caffe"),
}
