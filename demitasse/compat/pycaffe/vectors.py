"""Lists by the names that Caffe's compiled module gives them.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from demitasse.blob import Blob
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

    To put a blob in the place of one has that one hold the values and the gradient of the other.

    Raises:
        NetError: The list is changed otherwise. In Caffe a blob that is added is saved with the net
            and otherwise without effect.
    """

    def __setitem__(self, index: Any, blob: Any) -> None:
        if isinstance(index, slice) or not isinstance(blob, Blob):
            self._refuse()
        held = self[index]
        held.share_data(blob)
        held.share_diff(blob)

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        message = (
            "the list of a layer's parameters cannot be changed; to change values, write into a "
            "blob: net.params['ip1'][0].data[...] = array"
        )
        raise NetError(message)

    __delitem__ = __iadd__ = __imul__ = _refuse
    add_blob = append = clear = extend = insert = pop = remove = reverse = sort = _refuse


class StringVec(list[str]):
    """Names."""
