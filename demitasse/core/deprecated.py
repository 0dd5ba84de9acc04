"""Old public names of modules, attributes and arguments.

Old names work for one more release and warn once per process. The public addresses
``demitasse.pycaffe`` and ``demitasse.cvdnn`` stay for good.
"""

import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

_warned: set[str] = set()


def warn_once(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that a public name is deprecated, the first time in this process.

    ``stacklevel`` is the number of frames from here to the user's code.
    """
    if old in _warned:
        return
    _warned.add(old)
    message = f"{old} is deprecated and goes with the next release; use {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def log_once(log: logging.Logger, old: str, new: str) -> None:
    """Log a warning that a flag, setting or variable is deprecated, the first time."""
    if old not in _warned:
        _warned.add(old)
        log.warning("%s is deprecated and goes with the next release; use %s", old, new)


def deprecated_attribute(owner: str, old: str, new: str) -> Any:
    """Return a property that warns and reads or sets the attribute of the new name."""

    def read(self: Any) -> Any:
        warn_once(f"{owner}.{old}", f"{owner}.{new}")
        return getattr(self, new)

    def write(self: Any, value: Any) -> None:
        warn_once(f"{owner}.{old}", f"{owner}.{new}")
        setattr(self, new, value)

    return property(read, write, doc=f"Deprecated name of ``{new}``.")


def adopt_renamed_overrides(kind: type, names: Mapping[str, str]) -> None:
    """Give overrides with old names their present names; for ``__init_subclass__``."""
    for old, new in names.items():
        if old in vars(kind) and new not in vars(kind):
            warn_once(f"{kind.__qualname__}.{old}", new, stacklevel=4)
            setattr(kind, new, vars(kind)[old])


def deprecated_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that has old names of its attributes."""

    def find(name: str) -> Any:
        if name not in names:
            message = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(message)
        warn_once(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return find


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Return a decorator under which a function accepts old names of keyword arguments.

    A call that gives an argument by both names raises a TypeError.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            current: dict[str, Any] = {}
            for name, value in given.items():
                new = names.get(name, name)
                if new != name:
                    warn_once(f"argument {name} of {function.__qualname__}", new)
                    if new in given or new in current:
                        message = f"{function.__qualname__} got {new} twice: {name} is its old name"
                        raise TypeError(message)
                current[new] = value
            return function(*args, **current)

        return cast("Function", call)

    return decorate


ADDRESSES = {f"demitasse.{name}": f"demitasse.compat.{name}" for name in ("pycaffe", "cvdnn")}
"""Public names of packages that stay for good, and the folders of their files."""


def _in_package(names: Mapping[str, str]) -> dict[str, str]:
    return {f"demitasse.{old}": f"demitasse.{new}" for old, new in names.items()}


MOVED = _in_package({
    "cards": "inference.cards", "atomic": "core.atomic", "config": "core.config", "data": "io.data",
    "device": "core.device", "export": "interop", "intake": "interop.onnx_import",
    "layers.facts": "layers.metadata", "log": "core.log", "parallel": "training.distributed",
    "prediction": "inference.prediction", "proto": "io.proto", "serving": "inference.serving",
    "solvers": "training", "testing.against": "testing.compare_models",
    "testing.differences": "testing.error_stats", "testing.others": "testing.reference",
    "testing.training": "testing.comparison", "tracking": "training.tracking",
    "weights": "io.weights",
})  # fmt: skip
"""Deprecated names of packages, and the present ones."""

RENAMED = _in_package({
    "layers.data_layers.image_seg_data": "layers.data_layers.image_data",
    "memory.guard": "memory.transfers", "net.memory_use": "net.memory_usage",
    "plan.stopwatch": "plan.report", "data.databases.annotated": "io.data.databases.datum",
    "data.images.decode": "io.data.images.codecs", "data.images.encode": "io.data.images.codecs",
    "data.images.interpolate": "io.data.images.resize",
    "data.sources.hdf5": "io.data.sources.arrays",
    "data.sources.label_images": "io.data.sources.image_list",
    "data.sources.memory": "io.data.sources.arrays",
    "data.transform.augment.annotated": "io.data.transform.augment",
    "data.transform.augment.augmenter": "io.data.transform.augment",
    "weights.npy": "io.weights.npz", "weights.pairing": "io.weights.load",
    "weights.read": "io.weights.formats", "solvers.snapshot": "training.checkpoint.snapshot",
    "solvers.distributions": "training.report",
    "solvers.surviving": "training.distributed.fault_tolerance", "notebook.tables": "notebook.show",
    "training.tracking.json_lines": "training.tracking.logger",
})  # fmt: skip
"""Present names of modules that have another name in their new package."""


def current_name(name: str) -> str | None:
    """Return the present name of a module; None if ``name`` is not an old one."""
    if name in RENAMED:
        return RENAMED[name]
    parts = name.split(".")
    for length in (2, 3):
        old = ".".join(parts[:length])
        new = ADDRESSES.get(old) or MOVED.get(old)
        if new is not None:
            return new + name.removeprefix(old)
    return None


class _Finder(MetaPathFinder, Loader):
    """Imports the present module for an old name; both names refer to one module object."""

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

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        new = current_name(name)
        if new is not None:
            sys.modules[name] = import_module(new)

    def get_code(self, name: str) -> CodeType | None:
        """Return the code of a module that ``python -m`` runs under an old name."""
        new = current_name(name)
        spec = None if new is None else importlib.util.find_spec(new)
        loader: Any = None if spec is None else spec.loader
        code: CodeType | None = loader.get_code(new) if hasattr(loader, "get_code") else None
        return code


_finder = _Finder()


def install_old_module_names() -> None:
    """Make old module names importable in this process; further calls do nothing."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)  # a moved package's __path__ would load a second copy
