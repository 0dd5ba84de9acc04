"""For people who write layers and backends: one layer alone, its gradients, devices compared.

Example::

    from demitasse.testing import check_gradients

    check_gradients('type: "TanH"', [[0.5, -1.0, 2.0]])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demitasse.testing.against import ModelComparison, compare_model, compare_weights
    from demitasse.testing.comparison import Comparison, Row, compare
    from demitasse.testing.differences import Difference, Gap
    from demitasse.testing.gradients import GradientError, check_gradients
    from demitasse.testing.inputs import random_inputs
    from demitasse.testing.others import open_other
    from demitasse.testing.single_layer import SingleLayer, make_layer
    from demitasse.testing.training import TrainingStep, compare_training

__all__ = [
    "Comparison",
    "Difference",
    "Gap",
    "GradientError",
    "ModelComparison",
    "Row",
    "SingleLayer",
    "TrainingStep",
    "check_gradients",
    "compare",
    "compare_model",
    "compare_training",
    "compare_weights",
    "make_layer",
    "open_other",
    "random_inputs",
]

_PACKAGES = {
    "demitasse.testing.against": ["ModelComparison", "compare_model", "compare_weights"],
    "demitasse.testing.comparison": ["Comparison", "Row", "compare"],
    "demitasse.testing.differences": ["Difference", "Gap"],
    "demitasse.testing.gradients": ["GradientError", "check_gradients"],
    "demitasse.testing.inputs": ["random_inputs"],
    "demitasse.testing.others": ["open_other"],
    "demitasse.testing.single_layer": ["SingleLayer", "make_layer"],
    "demitasse.testing.training": ["TrainingStep", "compare_training"],
}
_HOME = {name: package for package, names in _PACKAGES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in, and keep it."""
    if name not in _HOME:
        message = f"module 'demitasse.testing' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
