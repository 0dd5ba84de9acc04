"""Import what the setting ``import`` names: modules of a user's own that add layers and backends.

A name that ends in ``.py`` or has a ``/`` in it is a file; any other one is a module, which is
looked for as Python does and then in the folder of the settings file, or in the working directory.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.core.config import settings
from demitasse.core.paths import real
from demitasse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["import_extensions"]

_done: set[tuple[str, Path]] = set()
_lock = threading.RLock()


def import_extensions() -> None:
    """Import what the setting names, each once in a process.

    Raises:
        ConfigError: There is no such module or file, or importing it raised an exception.
    """
    found = settings.find("import")
    if found.value:
        _import_all(found.value, found.folder or Path.cwd(), found.where)


def _import_all(names: Sequence[str], folder: Path, where: str) -> None:
    with _lock:
        for name in names:
            if (name, folder) in _done:
                continue
            _done.add((name, folder))  # before, as it may ask for layers while it is imported
            try:
                _import(name, folder)
            except Exception as error:  # whatever somebody else's code raises
                _done.discard((name, folder))
                message = f"{where}: import of {name!r} raised {type(error).__name__}: {error}"
                raise ConfigError(message) from error


def _import(name: str, folder: Path) -> None:
    if name.endswith(".py") or "/" in name:
        _import_file(folder / name)
        return
    with _searched(folder):
        import_module(name)


def _import_file(path: Path) -> None:
    """Import a file as the module of its name; a module of that name may be there already."""
    path = real(path)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return
    name = path.stem if known is None else f"{path.stem}_of_{path.parent.name}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"{path} is no Python file"
        raise ImportError(message)
    module = module_from_spec(spec)
    sys.modules[name] = module  # pickle finds its classes there
    try:
        with _searched(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


@contextmanager
def _searched(folder: Path) -> Iterator[None]:
    """Search ``folder`` last of all, while a module and what it imports are imported."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
