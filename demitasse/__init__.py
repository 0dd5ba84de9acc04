"""Demitasse: Caffe's nets, solvers, files and Python interface on the Python array API.

Public names are imported on first use (PEP 562), so that ``import demitasse`` is fast and loads no
CUDA driver, database or image library.

PYTEST_DONT_REWRITE: pytest would warn that its plugin has imported this file already.
"""

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from demitasse.core.deprecated import install_old_module_names as _install_old_module_names
from demitasse.core.deprecated import warn_once as _warn_once
from demitasse.core.lazy_names import lazy_names as _lazy_names
from demitasse.core.text import set_renderer as _set_renderer
from demitasse.version import __version__

if TYPE_CHECKING:
    from demitasse import layers, lint, testing
    from demitasse.backends import register as register_backend
    from demitasse.benchmark import largest_batch
    from demitasse.blob import Blob
    from demitasse.compat import cvdnn, pycaffe
    from demitasse.compat.pycaffe.net_spec import NetSpec
    from demitasse.core.config import seed, settings
    from demitasse.core.device import (
        Device,
        current_device,
        devices,
        memory_info,
        set_device,
        use_device,
    )
    from demitasse.errors import (
        ConfigError,
        DataError,
        DemitasseError,
        DeviceError,
        ErrorCode,
        LostProcessError,
        NetError,
        OutOfMemoryError,
        ParallelError,
        PrototxtError,
        ShapeError,
        SnapshotError,
        WeightsError,
    )
    from demitasse.inference.cards import Predictor, load_model
    from demitasse.interop.onnx_export import Preprocess, export_onnx
    from demitasse.interop.onnx_import import import_onnx
    from demitasse.interop.torch_export import export_torch
    from demitasse.io import data, proto
    from demitasse.io.weights.formats import load_weights
    from demitasse.layers.base import Layer
    from demitasse.layers.registry import register_layer
    from demitasse.memory import transfer_guard
    from demitasse.net import Net
    from demitasse.testing import compare
    from demitasse.training import EarlyStopping, Solver

__all__ = [
    "Blob", "ConfigError", "DataError", "DemitasseError", "Device", "DeviceError",
    "EarlyStopping", "ErrorCode", "Layer", "LostProcessError", "Net", "NetError", "NetSpec",
    "OutOfMemoryError", "ParallelError", "Predictor", "Preprocess", "PrototxtError", "ShapeError",
    "SnapshotError", "Solver", "WeightsError", "__version__", "compare", "current_device",
    "cvdnn", "data", "devices", "export_onnx", "export_torch", "import_onnx", "largest_batch",
    "layers", "lint", "load_model", "load_weights", "memory_info", "proto", "pycaffe",
    "register_backend", "register_layer", "seed", "set_device", "settings", "testing",
    "transfer_guard", "use_device",
]  # fmt: skip

_find = _lazy_names(
    __name__,
    {
        "demitasse.benchmark": "largest_batch",
        "demitasse.blob": "Blob",
        "demitasse.compat.pycaffe.net_spec": "NetSpec",
        "demitasse.core.config": "seed settings",
        "demitasse.core.device": "Device current_device devices memory_info set_device use_device",
        "demitasse.errors": " ".join(["ErrorCode", *(n for n in __all__ if n.endswith("Error"))]),
        "demitasse.inference.cards": "Predictor load_model",
        "demitasse.interop.onnx_export": "Preprocess export_onnx",
        "demitasse.interop.onnx_import": "import_onnx",
        "demitasse.interop.torch_export": "export_torch",
        "demitasse.io.weights.formats": "load_weights",
        "demitasse.layers.base": "Layer",
        "demitasse.layers.registry": "register_layer",
        "demitasse.memory": "transfer_guard",
        "demitasse.net": "Net",
        "demitasse.testing": "compare",
        "demitasse.training": "EarlyStopping Solver",
    },
)
_MODULES = {
    "cvdnn": "demitasse.compat.cvdnn",
    "data": "demitasse.io.data",
    "layers": "demitasse.layers",
    "lint": "demitasse.lint",
    "proto": "demitasse.io.proto",
    "pycaffe": "demitasse.compat.pycaffe",
    "testing": "demitasse.testing",
}
_OLD = {"register": "register_layer"}

_set_renderer("demitasse.notebook", "html_of")
_install_old_module_names()

# Without a handler Python would print warnings; a program opts in to the log.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _OLD:
        _warn_once(f"demitasse.{name}", f"demitasse.{_OLD[name]}")
        name = _OLD[name]
    if name not in __all__:
        from demitasse.core import guesses

        raise guesses.attribute_error(sys.modules[__name__], name, guesses.MODULE)
    try:
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name == "register_backend":
            return import_module("demitasse.backends").register
        return _find(name)
    except KeyboardInterrupt:
        from demitasse.core.threads import check_interrupt

        check_interrupt()
        raise


def __dir__() -> list[str]:
    return list(__all__)
