"""``caffe.Net`` over the engine's Net.

Source: Caffe, ``python/caffe/pycaffe.py`` and ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from demitasse import net as engine
from demitasse.blob import Blob
from demitasse.errors import NetError, ShapeError
from demitasse.layers import Layer

__all__ = ["Net"]

Arrays = dict[str, np.ndarray]


class Net:
    """A net: ``Net(file, phase, level=0, stages=None, weights=None)``.

    The older ``Net(file, weights, phase)`` is understood too.

    Raises:
        PrototxtError: The file cannot be read.
        NetError: Its layers do not fit together.
    """

    def __init__(self, network_file: str, *args: Any, **kwargs: Any) -> None:
        phase, weights, level, stages = _arguments(*args, **kwargs)
        self._net = engine.Net(
            network_file, phase, level=level, stages=stages or (), weights=weights
        )
        self._fill()

    @classmethod
    def _over(cls, net: engine.Net) -> Self:
        """Return the pycaffe face of a net that exists already."""
        self = cls.__new__(cls)
        self._net = net
        self._fill()
        return self

    def _fill(self) -> None:
        net = self._net
        self.blobs: OrderedDict[str, Blob] = OrderedDict(net.blobs)
        self.params: OrderedDict[str, list[Blob]] = OrderedDict(net.params)
        self.layer_dict: OrderedDict[str, Layer] = OrderedDict(
            zip(net.layer_names, net.layers, strict=True)
        )

    # -- what it is ----------------------------------------------------------------------------

    @property
    def layers(self) -> list[Layer]:
        """The layers, splits included."""
        return self._net.layers

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs the caller fills."""
        return self._net.inputs

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs nobody reads."""
        return self._net.outputs

    @property
    def top_names(self) -> OrderedDict[str, list[str]]:
        """Names of the tops of each layer."""
        return self._names(self._net.top_ids)

    @property
    def bottom_names(self) -> OrderedDict[str, list[str]]:
        """Names of the bottoms of each layer."""
        return self._names(self._net.bottom_ids)

    def _names(self, ids: Callable[[int], list[int]]) -> OrderedDict[str, list[str]]:
        blobs = self._net.blob_names
        return OrderedDict(
            (name, [blobs[i] for i in ids(index)])
            for index, name in enumerate(self._net.layer_names)
        )

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        """The loss weight of each blob."""
        return OrderedDict(zip(self._net.blob_names, self._net.blob_loss_weights, strict=True))

    @property
    def _layer_names(self) -> list[str]:
        return self._net.layer_names

    @property
    def _blob_names(self) -> list[str]:
        return self._net.blob_names

    @property
    def _blobs(self) -> list[Blob]:
        return self._net.blob_list

    @property
    def _inputs(self) -> list[int]:
        return [self._net.blob_names.index(name) for name in self._net.inputs]

    @property
    def _outputs(self) -> list[int]:
        return [self._net.blob_names.index(name) for name in self._net.outputs]

    def _bottom_ids(self, layer: int) -> list[int]:
        return self._net.bottom_ids(layer)

    def _top_ids(self, layer: int) -> list[int]:
        return self._net.top_ids(layer)

    @property
    def _blob_loss_weights(self) -> list[float]:
        return self._net.blob_loss_weights

    @property
    def _layer_need_backward(self) -> list[bool]:
        return self._net.layer_need_backward

    @property
    def _memory_used(self) -> int:
        return self._net.memory_used

    # -- passes --------------------------------------------------------------------------------

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: Any,
    ) -> Arrays:
        """Run the net forward.

        Args:
            blobs: Blobs to return besides the outputs.
            start: First layer to run.
            end: Last layer to run; its tops are then the outputs.
            kwargs: An array for each net input, of the input blob's shape. With any, all inputs
                must be given.

        Returns:
            Live views of the outputs and of ``blobs``.

        Raises:
            NetError: The inputs given are not the net's.
            ShapeError: An input has another batch size than its blob.
        """
        wanted = list(blobs or [])
        if kwargs:
            if set(kwargs) != set(self.inputs):
                message = f"the net's inputs are {self.inputs}, given are {list(kwargs)}"
                raise NetError(message)
            for name, array in kwargs.items():
                self._fill_batch(name, array, self.blobs[name].data)
        self._net.forward(start, end)
        tops = self.outputs if end is None else self.top_names[end]
        return {name: self.blobs[name].data for name in dict.fromkeys([*tops, *wanted])}

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: Any,
    ) -> Arrays:
        """Run the net backward.

        Args:
            diffs: Blobs whose gradients to return besides those of the inputs.
            start: First layer to run, from the end.
            end: Last layer to run; the gradients of its bottoms are then returned.
            kwargs: A gradient for each output. With any, all outputs must be given.

        Returns:
            Live views of the gradients.
        """
        wanted = list(diffs or [])
        if kwargs:
            if set(kwargs) != set(self.outputs):
                message = f"the net's outputs are {self.outputs}, given are {list(kwargs)}"
                raise NetError(message)
            for name, array in kwargs.items():
                self._fill_batch(name, array, self.blobs[name].diff)
        self._net.backward(start, end)
        bottoms = self.inputs if end is None else self.bottom_names[end]
        return {name: self.blobs[name].diff for name in dict.fromkeys([*bottoms, *wanted])}

    @staticmethod
    def _fill_batch(name: str, array: Any, view: np.ndarray) -> None:
        given = np.asarray(array)
        if given.shape[:1] != view.shape[:1]:
            message = (
                f"blob {name!r} holds {view.shape[:1]} items, given are {given.shape[:1]}; "
                "reshape the blob first"
            )
            raise ShapeError(message)
        try:
            view[...] = given.reshape(view.shape)
        except ValueError:
            message = f"blob {name!r} is {view.shape}, the array given is {given.shape}"
            raise ShapeError(message) from None

    def _forward(self, start: int, end: int) -> float:
        return self._net.forward(start, end)

    def _backward(self, start: int, end: int) -> None:
        self._net.backward(start, end)

    def forward_all(self, blobs: Iterable[str] | None = None, **kwargs: Any) -> Arrays:
        """Run any number of items through the net, in batches of its size; return copies."""
        wanted = list(blobs or [])
        found: dict[str, list[np.ndarray]] = {name: [] for name in [*self.outputs, *wanted]}
        for batch in self._batch(kwargs):
            for name, array in self.forward(wanted, None, None, **batch).items():
                found[name].extend(array.copy())
        count = len(next(iter(kwargs.values())))
        return {name: np.asarray(items)[:count] for name, items in found.items()}

    def _batch(self, blobs: Arrays) -> Iterable[Arrays]:
        """Cut arrays into batches of the net's size; the last one is filled up with zeros."""
        count = len(next(iter(blobs.values())))
        size = self.blobs[next(iter(blobs))].shape[0]
        for start in range(0, count, size):
            part = {name: np.asarray(a)[start : start + size] for name, a in blobs.items()}
            yield {
                name: np.concatenate([a, np.zeros((size - len(a), *a.shape[1:]), a.dtype)])
                for name, a in part.items()
            }

    def reshape(self) -> None:
        """Let every layer give its tops their shapes."""
        self._net.reshape()

    def clear_param_diffs(self) -> None:
        """Set the gradients of all parameters to zero."""
        self._net.clear_param_diffs()

    def before_forward(self, callback: Callable[[int], None]) -> None:
        """Call a function with the layer's index before each layer's forward."""
        self._net.before_forward.append(callback)

    def after_forward(self, callback: Callable[[int], None]) -> None:
        """Call a function with the layer's index after each layer's forward."""
        self._net.after_forward.append(callback)

    def before_backward(self, callback: Callable[[int], None]) -> None:
        """Call a function with the layer's index before each layer's backward."""
        self._net.before_backward.append(callback)

    def after_backward(self, callback: Callable[[int], None]) -> None:
        """Call a function with the layer's index after each layer's backward."""
        self._net.after_backward.append(callback)

    # -- weights -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters to a caffemodel."""
        self._net.save(path)

    def save_hdf5(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write the parameters to an HDF5 file."""
        self._net.save_hdf5(path, write_diff)

    def copy_from(self, path: str | os.PathLike[str]) -> None:
        """Load parameters by layer name from a file of weights, in any format."""
        self._net.load(path)

    def load_hdf5(self, path: str | os.PathLike[str]) -> None:
        """Load parameters by layer name from an HDF5 file."""
        self._net.load(path)

    def share_with(self, other: Net) -> None:
        """Hold the same parameters as the layers of the same names in another net."""
        self._net.share_trained_layers_with(other._net)

    def __repr__(self) -> str:
        return f"pycaffe.{self._net!r}"


def _arguments(*args: Any, **kwargs: Any) -> tuple[Any, Any, int, Sequence[str]]:
    """Sort out the two ways to make a net; the older one names the weights before the phase."""
    if args and isinstance(args[0], (str, os.PathLike)):
        weights, phase = args[0], args[1] if len(args) > 1 else kwargs.get("phase")
        return phase, weights, 0, ()
    names = ("phase", "level", "stages", "weights")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    unknown = set(given) - set(names)
    if unknown or "phase" not in given:
        message = f"Net(file, phase, level=0, stages=None, weights=None), not {given}"
        raise TypeError(message)
    return given["phase"], given.get("weights"), given.get("level", 0), given.get("stages") or ()
