"""Tests of layers, gradients and backends, and comparisons between devices and frameworks.

Example::

    from demitasse.testing import check_gradients

    check_gradients('type: "TanH"', [[0.5, -1.0, 2.0]])
"""

from typing import TYPE_CHECKING, Any

from demitasse.core.deprecated import warn_once
from demitasse.core.lazy_names import lazy_names

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

_find = lazy_names(
    __name__,
    {
        ".compare_models": "ModelComparison compare_model compare_weights",
        ".comparison": "Comparison Row TrainingStep compare compare_training random_inputs",
        ".error_stats": "Difference ErrorStats",
        ".gradients": "GradientError check_gradients",
        ".reference": "open_reference",
        ".single_layer": "SingleLayer make_layer",
    },
)
_OLD_NAMES = {"Gap": "ErrorStats", "open_other": "open_reference"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _OLD_NAMES:
        warn_once(f"demitasse.testing.{name}", f"demitasse.testing.{_OLD_NAMES[name]}")
    return _find(_OLD_NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
