"""Find the modules of Python layers: on ``sys.path`` as Caffe does, and beside the prototxt."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from demitasse.compat import caffe_import_hook as caffe_name
from demitasse.errors import ErrorCode, NetError

__all__ = ["import_user_module"]

_beside: dict[str, Path] = {}  # top-level modules that were found beside a prototxt, and where
_lock = threading.RLock()


def import_user_module(name: str, base_dir: Path | None) -> ModuleType:
    """Import the module that a ``python_param`` names.

    A module on ``sys.path`` wins. Two nets in different folders may each have a module of one name
    beside them: each gets its own. What modules import as ``caffe`` is ours.

    Args:
        name: As Python writes it, e.g. ``pyloss`` or ``layers.pyloss``.
        base_dir: Folder of the prototxt, or None.

    Raises:
        NetError: There is no such module; says where it was looked for.
        Exception: Whatever the module raises while it is imported.
    """
    caffe_name.install()
    top = name.partition(".")[0]
    folder = None if base_dir is None else base_dir.resolve()
    with _lock:
        if _beside.get(top, folder) != folder:  # another net's
            _forget(top)
        if top not in _beside and not _on_path(top):
            if folder is None or PathFinder.find_spec(top, [str(folder)]) is None:
                raise _missing(name, folder)
            _beside[top] = folder
        try:
            with _searched(_beside.get(top)):
                return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there; one that it imports is not
            raise _missing(name, folder) from None


def _on_path(top: str) -> bool:
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except ValueError:
        return False


def _forget(top: str) -> None:
    del _beside[top]
    for known in [one for one in list(sys.modules) if one == top or one.startswith(f"{top}.")]:
        del sys.modules[known]
    importlib.invalidate_caches()


@contextmanager
def _searched(folder: Path | None) -> Iterator[None]:
    """Search ``folder``, too, while a module and what it imports are imported."""
    if folder is None:
        yield
        return
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _missing(name: str, folder: Path | None) -> NetError:
    places = "on sys.path" + (f" and in {folder}" if folder is not None else "")
    message = (
        f"python_param.module {name!r} was not found {places}; "
        "add its folder to PYTHONPATH, or put it beside the prototxt"
    )
    return NetError(message, code=ErrorCode.NOT_FOUND, field="python_param.module", got=name)
