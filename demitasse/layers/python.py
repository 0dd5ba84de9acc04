"""Python: a layer written by the user, with numpy, the way Caffe's Python layers are written.

Source: Caffe, ``include/caffe/layers/python_layer.hpp`` and ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from demitasse.blob import Blob
from demitasse.errors import ConfigError, DemitasseError, NetError
from demitasse.layers.base import Blobs, Flags, Layer
from demitasse.layers.context import LayerContext
from demitasse.layers.registry import register
from demitasse.layers.user_modules import import_user_module
from demitasse.proto import LayerParameter, Phase

__all__ = ["Python", "PythonLayerBase", "UserBlobs"]


class UserBlobs(list[Blob]):
    """Parameters of a Python layer; ``add_blob`` makes one more."""

    _layer: Layer | None = None

    def add_blob(self, *shape: int) -> Blob:
        """Add a parameter of zeros.

        Raises:
            NetError: The layer is not part of a net.
            ShapeError: A stored parameter in this place has another shape.
        """
        if self._layer is None:
            message = "add_blob is for layers in a net: call it in setup"
            raise NetError(message)
        return self._layer.add_param(shape)


class PythonLayerBase:
    """What users derive their Python layers from: ``caffe.Layer``.

    ``bottom[i].data`` and ``.diff`` are live numpy views; ``top[i].reshape(...)`` gives a shape.
    ``reshape`` runs before every ``forward``.

    Attributes:
        param_str: The text in ``python_param``.
        phase: 0 in TRAIN, 1 in TEST.
        blobs: Parameters; ``blobs.add_blob(2, 3)`` in ``setup`` makes one.
    """

    param_str: str = ""
    phase: int = Phase.Value("TRAIN")
    blobs: UserBlobs

    def __init__(self, param: LayerParameter | None = None) -> None:
        self.layer_param = param

    @property
    def type(self) -> str:
        """The type in the prototxt."""
        return "Python"

    @property
    def param_str_(self) -> str:
        """What ``param_str`` was called in early versions of Caffe."""
        return self.param_str

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Look at the bottoms and prepare; called once."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Give the tops their shapes."""
        raise NotImplementedError(self._lacks("reshape(self, bottom, top)"))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Fill ``top[i].data``."""
        raise NotImplementedError(self._lacks("forward(self, bottom, top)"))

    def backward(
        self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]
    ) -> None:
        """Fill ``bottom[i].diff`` where ``propagate_down[i]``."""
        raise NotImplementedError(self._lacks("backward(self, top, propagate_down, bottom)"))

    def _lacks(self, method: str) -> str:
        return f"{type(self).__name__} does not define {method}"


class Python(Layer):
    """Hands its blobs to a user's object, on the host. Not compared with the original.

    Shapes: as the user's ``reshape`` says.

    Raises:
        ConfigError: ``module`` or ``layer`` is missing, or Python layers are switched off.
        NetError: There is no such module, or no such layer in it.
        Exception: Whatever the user's code raises, with a note that names the layer.
    """

    dynamic_shapes = True

    def __init__(
        self, param: LayerParameter, phase: str, context: LayerContext, user: type[PythonLayerBase]
    ) -> None:
        super().__init__(param, phase, context)
        self.blobs = self.own = UserBlobs(self.blobs)
        self.own._layer = self
        with self._noted("__init__"):
            self.user = user(param)
        self.user.param_str = param.python_param.param_str
        self.user.phase = Phase.Value(phase)
        self.user.blobs = self.own

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        with self._noted("setup"):
            self.user.setup(bottom, top)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        with self._noted("reshape"):
            self.user.reshape(bottom, top)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        before = [blob.shape for blob in top]
        self.reshape(bottom, top)  # now that the bottoms hold what it may depend on
        if [blob.shape for blob in top] != before:
            self.fill_loss_weights(top)
        with self._noted("forward"):
            self.user.forward(bottom, top)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        with self._noted("backward"):
            self.user.backward(top, list(propagate_down), bottom)

    @contextmanager
    def _noted(self, method: str) -> Iterator[None]:
        """Let errors of the user's code through as they are, with a note that names the place."""
        try:
            yield
        except DemitasseError:
            raise  # the net names the layer
        except Exception as error:
            p = self.param.python_param
            error.add_note(f"in layer {self.name!r} (Python), {p.module}.{p.layer}.{method}")
            raise


@register("Python")
def create_python_layer(param: LayerParameter, phase: str, context: LayerContext) -> Layer:
    """Make the layer that ``python_param`` names.

    A subclass of ``demitasse.Layer`` is used as it is, on the net's device; one of ``caffe.Layer``
    is handed numpy views.
    """
    chosen = _user_class(param, context)
    if issubclass(chosen, PythonLayerBase):
        return Python(param, phase, context, chosen)
    made: Layer = chosen(param, phase, context)
    return made


def _user_class(param: LayerParameter, context: LayerContext) -> Any:
    p = param.python_param
    if not p.module or not p.layer:
        message = "python_param needs a module and a layer: the name of a class in that module"
        raise ConfigError(message)
    if not context.python_layers:
        message = (
            f"this net would import the module {p.module!r}, but Python layers are switched off; "
            "allow them with DEMITASSE_PYTHON_LAYERS=1 if you trust the net"
        )
        raise ConfigError(message)
    try:
        module = import_user_module(p.module, context.base_dir)
    except DemitasseError:
        raise
    except Exception as error:
        error.add_note(f"in layer {param.name!r} (Python), importing {p.module}")
        raise
    kinds = (PythonLayerBase, Layer)
    chosen = getattr(module, p.layer, None)
    if not (isinstance(chosen, type) and issubclass(chosen, kinds)):
        there = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, kinds)]
        own = [n for n in there if vars(module)[n].__module__ == module.__name__]
        has = f"it has {', '.join(own)}" if own else "it has none"
        message = (
            f"python_param.layer {p.layer!r} is not a layer in module {p.module!r} "
            f"({getattr(module, '__file__', 'built in')}): a subclass of caffe.Layer or "
            f"demitasse.Layer is needed; {has}"
        )
        raise NetError(message)
    return chosen
