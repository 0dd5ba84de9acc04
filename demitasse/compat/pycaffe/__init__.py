"""Caffe's Python interface, name for name: ``import demitasse.compat.pycaffe as caffe``.

Scripts written for pycaffe run over the engine unchanged. What they abort on raises here, and
the device may be anything a net runs on: ``set_mode_gpu`` is ``set_device("cuda:0")``.
``python -m demitasse.pycaffe script.py`` and ``install()`` let them say ``import caffe``.

Names are loaded when first used (PEP 562), so importing the package costs little.

Source: Caffe, ``python/caffe/__init__.py`` and ``python/caffe/_caffe.cpp``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demitasse.compat.caffe_import_hook import install
    from demitasse.compat.pycaffe import (
        classifier,
        coord_map,
        detector,
        draw,
        io,
        net_spec,
        proto,
        pycaffe,
    )
    from demitasse.compat.pycaffe.classifier import Classifier
    from demitasse.compat.pycaffe.detector import Detector
    from demitasse.compat.pycaffe.glog import init_log, log
    from demitasse.compat.pycaffe.modes import (
        TEST,
        TRAIN,
        layer_type_list,
        set_device,
        set_mode_cpu,
        set_mode_gpu,
        set_phase_test,
        set_phase_train,
        set_random_seed,
    )
    from demitasse.compat.pycaffe.net import Net
    from demitasse.compat.pycaffe.net_spec import NetSpec, layers, params, to_proto
    from demitasse.compat.pycaffe.parallel import (
        NCCL,
        has_nccl,
        set_multiprocess,
        set_solver_count,
        set_solver_rank,
        solver_count,
        solver_rank,
    )
    from demitasse.compat.pycaffe.solver import (
        AdaDeltaSolver,
        AdaGradSolver,
        AdamSolver,
        NesterovSolver,
        RMSPropSolver,
        SGDSolver,
        get_solver,
    )
    from demitasse.compat.pycaffe.timer import Timer
    from demitasse.layers.user_layer import UserLayer as Layer

__version__ = "1.0.0"
"""The version of Caffe whose interface this is; ``demitasse.__version__`` is our own."""

__all__ = [
    "NCCL",
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
    "Timer",
    "__version__",
    "classifier",
    "coord_map",
    "detector",
    "draw",
    "get_solver",
    "has_nccl",
    "init_log",
    "install",
    "io",
    "layer_type_list",
    "layers",
    "log",
    "net_spec",
    "params",
    "proto",
    "pycaffe",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_phase_test",
    "set_phase_train",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "to_proto",
]

_MODULES = {
    "_caffe", "classifier", "coord_map", "detector", "draw", "io", "net_spec", "proto", "pycaffe",
}  # fmt: skip
_SOLVERS = [name for name in __all__ if name.endswith("Solver")]
_ROOMS = {
    "demitasse.compat.caffe_import_hook": ["install"],
    "demitasse.layers.user_layer": ["Layer"],  # called UserLayer there
    "demitasse.compat.pycaffe.classifier": ["Classifier"],
    "demitasse.compat.pycaffe.detector": ["Detector"],
    "demitasse.compat.pycaffe.glog": ["init_log", "log"],
    "demitasse.compat.pycaffe.modes": [
        "TEST", "TRAIN", "layer_type_list", "set_device", "set_mode_cpu", "set_mode_gpu",
        "set_phase_test", "set_phase_train", "set_random_seed",
    ],
    "demitasse.compat.pycaffe.net": ["Net"],
    "demitasse.compat.pycaffe.net_spec": ["NetSpec", "layers", "params", "to_proto"],
    "demitasse.compat.pycaffe.parallel": [
        "NCCL", "has_nccl", "set_multiprocess", "set_solver_count", "set_solver_rank",
        "solver_count", "solver_rank",
    ],
    "demitasse.compat.pycaffe.solver": [*_SOLVERS, "get_solver"],
    "demitasse.compat.pycaffe.timer": ["Timer"],
}  # fmt: skip
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in, and keep it."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOME[name]), "UserLayer" if name == "Layer" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
