"""Caffe's Python interface, name for name: ``from demitasse import pycaffe as caffe``.

Scripts for pycaffe run unchanged. Errors that abort Caffe raise exceptions, and nets run on any
device: ``set_mode_gpu`` is ``set_device("cuda:0")``. ``python -m demitasse.pycaffe script.py`` and
``install()`` make ``import caffe`` load this package.

Public names are imported on first use (PEP 562), so that importing the package is fast.

Source: Caffe, ``python/caffe/__init__.py`` and ``python/caffe/_caffe.cpp``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from demitasse.core.lazy_names import lazy_names

if TYPE_CHECKING:
    # ruff: noqa: F401, F403 - names that ``__getattr__`` imports
    from demitasse.compat.caffe_import_hook import *
    from demitasse.compat.pycaffe import classifier, coord_map, detector, draw, io, net_spec, proto
    from demitasse.compat.pycaffe import pycaffe as pycaffe
    from demitasse.compat.pycaffe.classifier import Classifier
    from demitasse.compat.pycaffe.common import *
    from demitasse.compat.pycaffe.detector import Detector
    from demitasse.compat.pycaffe.net import Net
    from demitasse.compat.pycaffe.net_spec import *
    from demitasse.compat.pycaffe.solver import *
    from demitasse.layers.user_layer import UserLayer as Layer

__version__ = "1.0.0"
"""Version of Caffe's interface; the package's version is ``demitasse.__version__``."""

_MODULES = (
    "classifier", "coord_map", "detector", "draw", "io", "net_spec", "proto", "pycaffe",
)  # fmt: skip
_SOURCES = {
    "demitasse.compat.caffe_import_hook": "install",
    ".classifier": "Classifier",
    ".detector": "Detector",
    ".common": "TEST TRAIN Timer init_log layer_type_list log set_device set_mode_cpu "
    "set_mode_gpu set_phase_test set_phase_train set_random_seed",
    ".net": "Net",
    ".net_spec": "NetSpec layers params to_proto",
    ".solver": "NCCL AdaDeltaSolver AdaGradSolver AdamSolver NesterovSolver "
    "RMSPropSolver SGDSolver get_solver has_nccl set_multiprocess set_solver_count "
    "set_solver_rank solver_count solver_rank",
}
_find = lazy_names(__name__, _SOURCES)

__all__ = ["Layer", "__version__"]
__all__ += list(_MODULES)
__all__ += [name for names in _SOURCES.values() for name in names.split()]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in {*_MODULES, "_caffe"}:
        return import_module(f"{__name__}.{name}")
    if name == "Layer":
        return import_module("demitasse.layers.user_layer").UserLayer
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
