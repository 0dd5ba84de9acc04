"""Import hook: ``import caffe`` loads Demitasse's Python interface.

The hook is the first finder on ``sys.meta_path``, so folders on ``sys.path`` do not matter, and
scripts that look for Caffe in its own folder load Demitasse. ``caffe`` and its submodules are the
modules of ``demitasse.compat.pycaffe``; modules that only a fork of Caffe has are loaded from the
fork's folder.
"""

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

CAFFE, TARGET = "caffe", "demitasse.compat.pycaffe"

_lock = threading.Lock()


def install() -> None:
    """Make ``import caffe`` load ``demitasse.compat.pycaffe`` in this process.

    Existing references to a previously imported ``caffe`` stay valid. Further calls do nothing.
    """
    with _lock:
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        for name, module in list(sys.modules.items()):  # a copy: other threads may import meanwhile
            if _is_caffe(name) and not getattr(module, "__name__", "").startswith("demitasse."):
                sys.modules.pop(name, None)


def _is_caffe(name: str) -> bool:
    return name == CAFFE or name.startswith(f"{CAFFE}.")


def _real_name(name: str) -> str:
    """Return the real name of a module ``caffe...``."""
    if name == "caffe.proto.caffe_pb2":
        return "demitasse.io.proto.caffe_pb2"
    return TARGET + name.removeprefix(CAFFE)


class _Finder(MetaPathFinder, Loader):
    """Finds ``caffe...`` and replaces it by the module of Demitasse."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if not _is_caffe(name):
            return None
        try:
            real = importlib.util.find_spec(_real_name(name))
        except ModuleNotFoundError:  # a submodule of a fork's module, or of a plain module
            return None
        if real is None:
            # a module of a fork, such as SSD's ``caffe.model_libs``, in a folder on ``sys.path``
            *packages, _ = name.split(".")
            return PathFinder.find_spec(name, [str(Path(one, *packages)) for one in sys.path])
        if name == CAFFE:
            _warn_of_unbuilt_caffe()
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(name, self, origin=real.origin, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the entry of sys.modules.
        sys.modules[module.__name__] = import_module(_real_name(module.__name__))
        if module.__name__ == CAFFE:
            import_module(f"{TARGET}.common").keep_glog_settings()
            # Caffe loads it through scikit-image, so scripts only `import PIL`
            with suppress(ImportError):
                import_module("PIL.Image")


_finder = _Finder()


def _warn_of_unbuilt_caffe() -> None:
    """Warn if ``sys.path`` contains Caffe's sources that were never compiled.

    An importable ``caffe`` is ignored silently.
    """
    found = PathFinder.find_spec(CAFFE)
    if found is None or found.origin is None:
        return
    folder = Path(found.origin).parent
    built = any((folder / f"_caffe{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    if (folder / "_caffe.cpp").exists() and not built:
        message = (
            f"{folder} contains Caffe's Python interface, but it was never compiled (there is no "
            "_caffe.so); `import caffe` loads Demitasse's instead. Remove the folder above it from "
            "sys.path and PYTHONPATH to avoid this warning"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)
