"""Python: a layer written by the user, with numpy, as Caffe's Python layers are.

Source: Caffe, ``include/caffe/layers/python_layer.hpp`` and ``python/caffe/_caffe.cpp``.
"""

import importlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from demitasse.compat import caffe_import_hook as caffe_name
from demitasse.core.plugins import searched
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError
from demitasse.io.proto import LayerParameter
from demitasse.layers.base import STATE, Blobs, Flags, Layer
from demitasse.layers.checks import missing
from demitasse.layers.context import LayerContext
from demitasse.layers.registry import register_layer
from demitasse.layers.user_layer import BlobVec, Phase, RawBlobVec, UserLayer


class Python(Layer):
    """Layer whose passes call a user's object, on the host. Not compared with the original.

    Shapes: set by the user's ``reshape``.

    Raises:
        ConfigError: ``module`` or ``layer`` is missing, or Python layers are switched off.
        NetError: The module is not found, or has no such layer.
        Exception: Any error of the user's code, with a note that names the layer.
    """

    dynamic_shapes = True

    def __init__(
        self, param: LayerParameter, phase: str, context: LayerContext, user: type[UserLayer]
    ) -> None:
        super().__init__(param, phase, context)
        self.blobs = self.own = BlobVec(self.blobs)
        self.own.layer = self
        with self._noted("__init__"):
            self.user = user(param)
        self.user.param_str = param.python_param.param_str
        self.user.phase = Phase[phase]
        self.user.rank, self.user.world_size = context.rank, context.world_size
        self.user.blobs = self.own
        hooks = (getattr(self.user, name, None) for name in ("state_dict", "load_state_dict"))
        self.keeps_state = all(callable(hook) for hook in hooks)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        with self._noted("setup"):
            self.user.setup(RawBlobVec(bottom), RawBlobVec(top))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        with self._noted("reshape"):
            self.user.reshape(RawBlobVec(bottom), RawBlobVec(top))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        bottom, top = RawBlobVec(bottom), RawBlobVec(top)
        before = [blob.shape for blob in top]
        self.reshape(bottom, top)  # the shapes may depend on values
        with self._noted("forward"):
            self.user.forward(bottom, top)
        if [blob.shape for blob in top] != before:
            self.fill_loss_weights(top)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        with self._noted("backward"):
            self.user.backward(RawBlobVec(top), list(propagate_down), RawBlobVec(bottom))

    def state(self) -> dict[str, Any]:
        """Return what the user's ``state_dict`` returns."""
        if not self.keeps_state:
            return {}
        with self._noted("state_dict"):
            return {STATE: self.user.state_dict()}  # type: ignore[attr-defined]

    def set_state(self, state: dict[str, Any]) -> None:
        """Call the user's ``load_state_dict``."""
        if self.keeps_state and STATE in state:
            with self._noted("load_state_dict"):
                self.user.load_state_dict(state[STATE])  # type: ignore[attr-defined]

    @property
    def has_counters(self) -> bool:
        return self.keeps_state

    @property
    def unsaved_state(self) -> str:
        if self.keeps_state:
            return ""
        return f"{type(self.user).__name__} does not define state_dict and load_state_dict"

    @contextmanager
    def _noted(self, method: str) -> Iterator[None]:
        """Add a note with the place to errors of the user's code."""
        try:
            yield
        except DemitasseError:
            raise  # the net names the layer
        except Exception as error:
            p = self.param.python_param
            where = f"in layer {self.name!r} (Python), {p.module}.{p.layer}.{method}"
            error.add_note(f"{where}{_place(error, p.module)}")
            raise


def _place(error: Exception, module: str) -> str:
    """Return file and line of the last frame in the user's module."""
    file = getattr(sys.modules.get(module), "__file__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f", {file}:{frames[-1].lineno}" if frames else ""


@register_layer("Python")
def create_python_layer(param: LayerParameter, phase: str, context: LayerContext) -> Layer:
    """Return the layer that ``python_param`` names.

    A subclass of ``demitasse.Layer`` runs on the net's device; a subclass of ``caffe.Layer`` gets
    numpy views.
    """
    chosen = _user_class(param, context)
    if issubclass(chosen, UserLayer):
        return Python(param, phase, context, chosen)
    return cast("Layer", chosen(param, phase, context))


def _user_class(param: LayerParameter, context: LayerContext) -> Any:
    p = param.python_param
    if not p.module or not p.layer:
        field = "layer" if p.module else "module"
        raise missing(f"python_param.{field}", "give a module and the name of a class in it")
    if not context.python_layers:
        message = (
            f"this net would import the module {p.module!r}, but Python layers are switched off; "
            "set DEMITASSE_PYTHON_LAYERS=1 if you trust the net"
        )
        raise ConfigError(message, code=ErrorCode.UNTRUSTED, field="python_param.module")
    try:
        module = import_user_module(p.module, context.base_dir)
    except DemitasseError:
        raise
    except Exception as error:
        error.add_note(f"in layer {param.name!r} (Python), importing {p.module}")
        raise
    kinds = (UserLayer, Layer)
    chosen = getattr(module, p.layer, None)
    if not (isinstance(chosen, type) and issubclass(chosen, kinds)):
        there = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, kinds)]
        own = [n for n in there if vars(module)[n].__module__ == module.__name__]
        has = f"it has {', '.join(own)}" if own else "it has none"
        message = (
            f"python_param.layer {p.layer!r} is not a layer in module {p.module!r} "
            f"({getattr(module, '__file__', 'built in')}), expected a subclass of caffe.Layer or "
            f"demitasse.Layer; {has}"
        )
        raise NetError(
            message, code=ErrorCode.UNKNOWN, field="python_param.layer", got=p.layer, known=own
        )
    return chosen


_beside: dict[str, Path] = {}  # folders of top-level modules found beside a prototxt
_lock = threading.RLock()


def import_user_module(name: str, base_dir: Path | None) -> ModuleType:
    """Import the module that a ``python_param`` names.

    A module on ``sys.path`` has priority. Nets in different folders may have modules of the same
    name beside their prototxts, in ``base_dir``: each net gets its own. ``import caffe`` gives
    ``demitasse.pycaffe``.

    Raises:
        NetError: The module is not found; the message names the folders searched.
        Exception: Any error while the module is imported.
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
            with searched(_beside[top]) if top in _beside else nullcontext():
                return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that it imports is missing
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


def _missing(name: str, folder: Path | None) -> NetError:
    places = "on sys.path" + (f" and in {folder}" if folder is not None else "")
    message = (
        f"python_param.module {name!r} was not found {places}; "
        "add its folder to PYTHONPATH, or put it beside the prototxt"
    )
    return NetError(message, code=ErrorCode.NOT_FOUND, field="python_param.module", got=name)
