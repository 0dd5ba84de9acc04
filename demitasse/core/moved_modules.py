"""Old module names, which import the modules that took their place.

The public addresses ``demitasse.pycaffe`` and ``demitasse.cvdnn`` stay for good. Every other old
name warns once, with the new one, and goes with the next release.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

__all__ = ["ADDRESSES", "MOVED", "install"]

ADDRESSES = {
    "demitasse.pycaffe": "demitasse.compat.pycaffe",
    "demitasse.cvdnn": "demitasse.compat.cvdnn",
}
"""Public addresses of packages, and where their files are."""

MOVED = {
    "demitasse.cards": "demitasse.inference.cards",
    "demitasse.config": "demitasse.core.config",
    "demitasse.data": "demitasse.io.data",
    "demitasse.device": "demitasse.core.device",
    "demitasse.export": "demitasse.interop.export",
    "demitasse.intake": "demitasse.interop.onnx_import",
    "demitasse.log": "demitasse.core.log",
    "demitasse.parallel": "demitasse.training.distributed",
    "demitasse.prediction": "demitasse.inference.prediction",
    "demitasse.proto": "demitasse.io.proto",
    "demitasse.serving": "demitasse.inference.serving",
    "demitasse.solvers": "demitasse.training",
    "demitasse.tracking": "demitasse.training.tracking",
    "demitasse.weights": "demitasse.io.weights",
}
"""Old names of packages that users may import, and the new ones."""


def current_name(name: str) -> str | None:
    """Return the present name of a module that is called by an old one; None for any other."""
    package, _, rest = name.partition(".")
    old = f"{package}.{rest.partition('.')[0]}"
    new = ADDRESSES.get(old) or MOVED.get(old)
    return None if new is None else new + name.removeprefix(old)


class _Finder(MetaPathFinder, Loader):
    """Import the present module for an old name; both names give the same module object."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        new = current_name(name)
        if new is None:
            return None
        found = importlib.util.find_spec(new)
        if found is None:
            return None
        if name in MOVED:
            message = f"{name} is now {new}; the old name goes with the next release"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        spec = ModuleSpec(name, self, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        new = current_name(name)
        if new is not None:
            sys.modules[name] = import_module(new)

    def get_code(self, name: str) -> CodeType | None:
        """Return the code of a module that ``python -m`` runs by an old name."""
        new = current_name(name)
        spec = None if new is None else importlib.util.find_spec(new)
        loader: Any = None if spec is None else spec.loader
        code: CodeType | None = loader.get_code(new) if hasattr(loader, "get_code") else None
        return code


_finder = _Finder()


def install() -> None:
    """Let old names be imported in this process; to call it again does nothing."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)  # a moved package's __path__ would load a second copy
