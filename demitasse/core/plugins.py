"""Plugins: modules of a user that add layers and backends, named by the setting ``plugins``.

A name that ends in ``.py`` or contains a ``/`` is a file. Any other name is a module, found on
Python's path, or else in the folder of the settings file or the working directory.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from demitasse.core.config import settings
from demitasse.core.paths import real_path, reason_of
from demitasse.errors import ConfigError, ErrorCode

_imported: set[tuple[str, Path]] = set()
_lock = threading.RLock()


def import_plugins() -> None:
    """Import the modules of the setting ``plugins``, each once per process."""
    found = settings.find("plugins")
    if not found.value:
        return
    folder = found.folder or Path.cwd()
    with _lock:
        for name in found.value:
            if (name, folder) in _imported:
                continue
            _imported.add((name, folder))  # first, as the module may look up layers on import
            try:
                _import(name, folder)
            except Exception as error:  # a plugin may raise anything
                _imported.discard((name, folder))
                kind = type(error).__name__
                reason = f"import raised {kind}: {reason_of(error)}"
                message = f"plugin {name!r} ({found.where}): {reason}"
                details: Any = {"setting": "plugins", "plugin": name, "raised": kind}
                raise ConfigError(message, code=ErrorCode.FAILED, **details) from error


def _import(name: str, folder: Path) -> None:
    """Import a module; a file as a module of its stem, or of another name if the stem is taken."""
    if not (name.endswith(".py") or "/" in name):
        with searched(folder):
            import_module(name)
        return
    path = real_path(folder / name)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return
    name = path.stem if known is None else f"{path.stem}_of_{path.parent.name}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"{path} is not a Python file"
        raise ImportError(message)
    module = module_from_spec(spec)
    sys.modules[name] = module  # pickle looks up classes there
    try:
        with searched(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


@contextmanager
def searched(folder: Path) -> Iterator[None]:
    """Append ``folder`` to Python's path while a module is imported."""
    added = str(folder)
    sys.path.append(added)
    try:
        yield
    finally:
        places = [index for index, place in enumerate(sys.path) if place == added]
        for last in places[-1:]:  # the path may have had the folder before
            del sys.path[last]
