"""Caffe's Python interface, name for name: ``import demitasse.pycaffe as caffe``.

Scripts written for pycaffe run over the engine unchanged. What they abort on raises here, and
the device may be anything a net runs on: ``set_mode_gpu`` is ``set_device("cuda:0")``.

Source: Caffe, ``python/caffe/__init__.py`` and ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from demitasse import __version__
from demitasse.layers import layer_types
from demitasse.pycaffe import io, proto
from demitasse.pycaffe.classifier import Classifier
from demitasse.pycaffe.detector import Detector
from demitasse.pycaffe.layer import Layer
from demitasse.pycaffe.modes import set_device, set_mode_cpu, set_mode_gpu, set_random_seed
from demitasse.pycaffe.net import Net
from demitasse.pycaffe.net_spec import NetSpec, layers, params, to_proto
from demitasse.pycaffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    get_solver,
)

__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Classifier",
    "Detector",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "__version__",
    "get_solver",
    "io",
    "layer_type_list",
    "layers",
    "params",
    "proto",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
    "to_proto",
]

TRAIN: int = proto.caffe_pb2.TRAIN
TEST: int = proto.caffe_pb2.TEST


def layer_type_list() -> list[str]:
    """Return the names of all layer types."""
    return layer_types()
