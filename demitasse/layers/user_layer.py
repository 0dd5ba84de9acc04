"""Base class of Python layers for Caffe: ``caffe.Layer``.

Source: Caffe, ``python/caffe/_caffe.cpp`` and ``include/caffe/layers/python_layer.hpp``.
"""

from abc import ABCMeta
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import wraps
from typing import Any, Self

from demitasse.blob import Blob
from demitasse.core.deprecated import deprecated_attribute
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import LayerParameter
from demitasse.layers.base import Layer


class Phase(IntEnum):
    """Phase: a number, as in Caffe's messages, that prints its name."""

    TRAIN = 0
    TEST = 1

    def __str__(self) -> str:
        return self.name


class RawBlobVec(list[Blob]):
    """Bottoms or tops of a layer."""


class BlobVec(list[Blob]):
    """Blobs, for instance the parameters of a layer; ``add_blob`` appends one.

    A list of a net's parameters is fixed: assigning a blob to an item shares the blob's data and
    gradient with the parameter.

    Raises:
        NetError: A fixed list is changed in another way. In Caffe an added blob is saved with the
            net and has no other effect.
    """

    layer: Layer | None = None
    """Layer to which ``add_blob`` adds parameters."""
    _fixed = False

    @classmethod
    def of_net(cls, blobs: Iterable[Blob]) -> Self:
        """Return the fixed list of a layer's parameters."""
        self = cls(blobs)
        self._fixed = True
        return self

    def add_blob(self, *shape: int) -> None:
        """Append a blob of zeros; in the ``setup`` of a Python layer, a parameter.

        Raises:
            ShapeError: The stored parameter of this index has another shape.
        """
        if self.layer is None:
            self.append(Blob(shape))
        else:
            self.layer.add_param(shape)

    def __setitem__(self, index: Any, blob: Any) -> None:
        if not self._fixed:
            super().__setitem__(index, blob)
            return
        if isinstance(index, slice) or not isinstance(blob, Blob):
            raise _fixed_list()
        param = self[index]
        param.share_data(blob)
        param.share_diff(blob)


def _fixed_list() -> NetError:
    message = (
        "the list of a layer's parameters cannot be changed; to change values, write into a "
        "blob: net.params['ip1'][0].data[...] = array"
    )
    return NetError(message, code=ErrorCode.READ_ONLY)


def _unless_fixed(name: str) -> Callable[..., Any]:
    """Return a method of lists that refuses fixed lists."""
    plain = getattr(list, name)

    @wraps(plain)
    def method(self: BlobVec, *args: Any, **kwargs: Any) -> Any:
        if self._fixed:
            raise _fixed_list()
        return plain(self, *args, **kwargs)

    return method


for _name in (
    "__delitem__", "__iadd__", "__imul__", "append", "clear", "extend", "insert", "pop", "remove",
    "reverse", "sort",
):  # fmt: skip
    setattr(BlobVec, _name, _unless_fixed(_name))


class _UserLayerType(ABCMeta):
    """Class of ``UserLayer``: in Caffe all layers are instances of ``caffe.Layer``."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (
            cls is UserLayer and isinstance(instance, Layer)
        )


class UserLayer(metaclass=_UserLayerType):
    """Base class of users' Python layers, ``caffe.Layer``.

    ``bottom[i].data`` and ``.diff`` are live numpy views; ``top[i].reshape(...)`` sets a shape.
    ``reshape`` runs before every ``forward``.

    A layer with state between iterations, such as a position in its data, defines two methods more,
    as modules of PyTorch have. ``state_dict()`` returns the state: numbers, strings, lists, dicts
    and arrays of NumPy; an empty dict if there is none. ``load_state_dict(state)`` restores the
    state. Snapshots store the state, and an interrupted iteration restores the state. A resumed run
    reports layers without the two methods, and refuses these layers with ``exact``.

    Attributes:
        param_str: The text in ``python_param``.
        rank: Index of this process, and of its shard of the data; not in Caffe.
        world_size: Number of processes; not in Caffe.
        phase: ``caffe.TRAIN`` or ``caffe.TEST``, which are 0 and 1.
        blobs: Parameters; ``blobs.add_blob(2, 3)`` in ``setup`` makes one.
    """

    param_str: str = ""
    rank: int = 0
    world_size: int = 1
    ranks = deprecated_attribute("Layer", "ranks", "world_size")
    phase: Phase = Phase.TRAIN
    blobs: BlobVec

    def __init__(self, param: LayerParameter | None = None) -> None:
        self.layer_param = param

    @property
    def type(self) -> str:
        """Type in the prototxt."""
        return "Python"

    @property
    def param_str_(self) -> str:
        """Name of ``param_str`` in early versions of Caffe."""
        return self.param_str

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Check the bottoms and prepare; called once."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Set the shapes of the tops."""
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
