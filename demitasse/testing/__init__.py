"""For people who write layers and backends: one layer alone, its gradients, devices compared.

Example::

    from demitasse.testing import check_gradients

    check_gradients('type: "TanH"', [[0.5, -1.0, 2.0]])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demitasse.testing.compare import Comparison, Difference, compare
    from demitasse.testing.gradients import GradientError, check_gradients
    from demitasse.testing.single_layer import SingleLayer, make_layer

__all__ = [
    "Comparison",
    "Difference",
    "GradientError",
    "SingleLayer",
    "check_gradients",
    "compare",
    "make_layer",
]

_PACKAGES = {
    "demitasse.testing.compare": ["Comparison", "Difference", "compare"],
    "demitasse.testing.gradients": ["GradientError", "check_gradients"],
    "demitasse.testing.single_layer": ["SingleLayer", "make_layer"],
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
