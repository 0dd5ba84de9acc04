"""Tests of layers, gradients and backends, and comparisons between devices and frameworks.

Example::

    from demitasse.testing import check_gradients

    check_gradients('type: "TanH"', [[0.5, -1.0, 2.0]])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from demitasse.core.deprecated import warn_once

if TYPE_CHECKING:
    from demitasse.testing.compare_models import ModelComparison, compare_model, compare_weights
    from demitasse.testing.comparison import (
        Comparison,
        Row,
        TrainingStep,
        compare,
        compare_training,
        random_inputs,
    )
    from demitasse.testing.error_stats import Difference, ErrorStats
    from demitasse.testing.gradients import GradientError, check_gradients
    from demitasse.testing.reference import open_reference
    from demitasse.testing.single_layer import SingleLayer, make_layer

__all__ = [
    "Comparison", "Difference", "ErrorStats", "GradientError", "ModelComparison", "Row",
    "SingleLayer", "TrainingStep", "check_gradients", "compare", "compare_model",
    "compare_training", "compare_weights", "make_layer", "open_reference", "random_inputs",
]  # fmt: skip

_MODULES = {
    "compare_models": ["ModelComparison", "compare_model", "compare_weights"],
    "comparison": [
        "Comparison", "Row", "TrainingStep", "compare", "compare_training", "random_inputs"
    ],
    "error_stats": ["Difference", "ErrorStats"],
    "gradients": ["GradientError", "check_gradients"],
    "reference": ["open_reference"],
    "single_layer": ["SingleLayer", "make_layer"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_OLD_NAMES = {"Gap": "ErrorStats", "open_other": "open_reference"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _OLD_NAMES:
        warn_once(f"demitasse.testing.{name}", f"demitasse.testing.{_OLD_NAMES[name]}")
        return __getattr__(_OLD_NAMES[name])
    if name not in _MODULE_OF:
        message = f"module 'demitasse.testing' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"demitasse.testing.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
