"""The name ``caffe``: once it is taken, ``import caffe`` gives Demitasse's Python interface.

A finder in front of all others answers for ``caffe`` and what lies below it, whichever folders
stand on ``sys.path``, also those put there later. So scripts that look for Caffe in a folder of its
own find ours. They get the modules of ``demitasse.compat.pycaffe``, under another
name; modules that only a fork of Caffe has are taken from its folder.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["install"]

CAFFE, OURS = "caffe", "demitasse.compat.pycaffe"

_lock = threading.Lock()


def install() -> None:
    """Let ``import caffe`` mean ``demitasse.compat.pycaffe`` in this process, from now on.

    Another ``caffe`` that has been imported before is left to those who hold it; later imports
    give ours. To call it again does nothing.
    """
    with _lock:
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        # a list at once: other threads may import meanwhile
        for name in [one for one in list(sys.modules) if _is_caffe(one)]:
            if not sys.modules[name].__name__.startswith("demitasse."):
                del sys.modules[name]


def _is_caffe(name: str) -> bool:
    return name == CAFFE or name.startswith(f"{CAFFE}.")


def _real_name(name: str) -> str:
    """Return what a module called ``caffe...`` is really called."""
    if name == "caffe.proto.caffe_pb2":
        return "demitasse.io.proto.caffe_pb2"
    return OURS + name.removeprefix(CAFFE)


class _Finder(MetaPathFinder, Loader):
    """Finds ``caffe...`` and puts our module of that name in its place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if not _is_caffe(name):
            return None
        try:
            real = importlib.util.find_spec(_real_name(name))
        except ModuleNotFoundError:  # it would be below a module that is not ours, or no package
            return None
        if real is None:
            return _module_that_a_fork_adds(name)
        if name == CAFFE:
            _tell_of_an_unbuilt_one()
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(name, self, origin=real.origin, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands here afterwards.
        sys.modules[module.__name__] = import_module(_real_name(module.__name__))
        if module.__name__ == CAFFE:
            # Caffe's own loads it by way of scikit-image, and scripts say `import PIL` alone
            with suppress(ImportError):
                import_module("PIL.Image")


_finder = _Finder()


def _module_that_a_fork_adds(name: str) -> ModuleSpec | None:
    """Return where a module is that only a ``caffe`` on ``sys.path`` has.

    Forks put modules of their own beside Caffe's, such as SSD's ``caffe.model_libs``. They are
    written over names that ours have, too.
    """
    *packages, _ = name.split(".")
    return PathFinder.find_spec(name, [str(Path(one, *packages)) for one in sys.path])


def _tell_of_an_unbuilt_one() -> None:
    """Warn where ``sys.path`` leads to Caffe's sources that were never compiled.

    A ``caffe`` that could be imported is passed over without a word.
    """
    found = PathFinder.find_spec(CAFFE)
    if found is None or found.origin is None:
        return
    folder = Path(found.origin).parent
    built = any((folder / f"_caffe{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    if (folder / "_caffe.cpp").exists() and not built:
        message = (
            f"{folder} holds Caffe's Python interface, but it was never compiled (there is no "
            "_caffe.so); `import caffe` gives Demitasse's instead. Take the folder above it from "
            "sys.path and PYTHONPATH to end this warning"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)
