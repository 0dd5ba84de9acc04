"""Lists by the names that Caffe's compiled module gives them.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from demitasse.errors import NetError
from demitasse.layers.user_layer import BlobVec

__all__ = ["BoolVec", "DtypeVec", "IntVec", "LayerVec", "ParamVec", "StringVec"]


class BoolVec(list[bool]):
    """Flags, such as which gradients a layer is to compute."""


class DtypeVec(list[float]):
    """Numbers, such as loss weights."""


class IntVec(list[int]):
    """Whole numbers, such as places of blobs in a net."""


class LayerVec(list[Any]):
    """Layers; a ``Python`` layer is the object that the user's class made."""


class ParamVec(BlobVec):
    """The parameters of a layer of a net, which keeps those that it was made with.

    Raises:
        NetError: The list is changed. In Caffe a blob that is added is saved with the net and
            otherwise without effect, and one that is put in another's place is not learned.
    """

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        message = (
            "the list of a layer's parameters cannot be changed; to change values, write into a "
            "blob: net.params['ip1'][0].data[...] = array"
        )
        raise NetError(message)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    add_blob = append = clear = extend = insert = pop = remove = reverse = sort = _refuse


class StringVec(list[str]):
    """Names."""
