"""``caffe.Net`` over the engine's Net.

Source: Caffe, ``python/caffe/pycaffe.py`` and ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

import pathlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from demitasse import net as engine
from demitasse.blob import Blob
from demitasse.compat.pycaffe.files import Path, path_of
from demitasse.compat.pycaffe.first_names import instead_of
from demitasse.compat.pycaffe.glog import begin_log
from demitasse.compat.pycaffe.modes import default_phase
from demitasse.compat.pycaffe.vectors import (
    BoolVec,
    DtypeVec,
    IntVec,
    LayerVec,
    ParamVec,
    StringVec,
)
from demitasse.core.html_repr import html_of
from demitasse.errors import NetError, ShapeError, WeightsError
from demitasse.io.weights.save import ARRAYS, save_caffemodel
from demitasse.layers.data_layers.memory_data import MemoryData
from demitasse.layers.python import Python
from demitasse.layers.user_layer import BlobVec, Phase

__all__ = ["Net", "NetVec"]

Arrays = dict[str, np.ndarray]
Hook = Callable[[int], None]


class Net:
    """A net: ``Net(file, phase, level=0, stages=None, weights=None)``.

    The older ``Net(file, weights, phase)`` is understood too.

    Raises:
        PrototxtError: The file cannot be read.
        NetError: Its layers do not fit together.
    """

    def __init__(self, network_file: Path, *args: Any, **kwargs: Any) -> None:
        phase, weights, level, stages = _arguments(*args, **kwargs)
        begin_log()
        self._net = engine.Net(
            path_of(network_file), int(phase), level=level, stages=stages, weights=weights
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
        net, ids = self._net, self._net.structure
        params: list[tuple[str, BlobVec]] = []
        for layer in net.layers:
            if not isinstance(layer.blobs, BlobVec):
                layer.blobs = ParamVec(layer.blobs)  # here, too, a blob may be put in a place
            if layer.blobs:
                params.append((layer.name, layer.blobs))
        self.layers = LayerVec(
            layer.user if isinstance(layer, Python) else layer for layer in net.layers
        )
        self.blobs: OrderedDict[str, Blob] = OrderedDict(net.blobs)
        self.params: OrderedDict[str, BlobVec] = OrderedDict(params)
        self.layer_dict: OrderedDict[str, Any] = OrderedDict(
            zip(net.layer_names, self.layers, strict=True)
        )
        self.blob_loss_weights: OrderedDict[str, float] = OrderedDict(
            zip(net.blob_names, ids.blob_loss_weights, strict=True)
        )
        self.inputs, self.outputs = list(net.inputs), list(net.outputs)
        self.top_names = self._names(ids.top_ids)
        self.bottom_names = self._names(ids.bottom_ids)

    def _names(self, ids: Callable[[int], list[int]]) -> OrderedDict[str, list[str]]:
        blobs = self._net.blob_names
        return OrderedDict(
            (name, [blobs[i] for i in ids(index)])
            for index, name in enumerate(self._net.layer_names)
        )

    # -- what it is, by number -----------------------------------------------------------------

    @property
    def _layer_names(self) -> StringVec:
        return StringVec(self._net.layer_names)

    @property
    def _blob_names(self) -> StringVec:
        return StringVec(self._net.blob_names)

    @property
    def _blobs(self) -> BlobVec:
        return BlobVec(self._net.structure.blob_list)

    @property
    def _inputs(self) -> IntVec:
        return IntVec(self._net.blob_names.index(name) for name in self._net.inputs)

    @property
    def _outputs(self) -> IntVec:
        return IntVec(self._net.blob_names.index(name) for name in self._net.outputs)

    def _bottom_ids(self, layer: int) -> IntVec:
        return IntVec(self._net.structure.bottom_ids(layer))

    def _top_ids(self, layer: int) -> IntVec:
        return IntVec(self._net.structure.top_ids(layer))

    @property
    def _blob_loss_weights(self) -> DtypeVec:
        return DtypeVec(self._net.structure.blob_loss_weights)

    @property
    def _layer_need_backward(self) -> BoolVec:
        return BoolVec(self._net.structure.layer_need_backward)

    @property
    def _memory_used(self) -> int:
        return self._net.structure.memory_used

    # -- passes --------------------------------------------------------------------------------

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: ArrayLike,
    ) -> Arrays:
        """Run the net forward.

        Args:
            blobs: Blobs to return besides the outputs.
            start: First layer to run.
            end: Last layer to run; its tops are then the outputs.
            kwargs: An array for each net input, which the blob is filled with by numpy's rules of
                broadcasting; its first axis is the blob's. With any, all inputs must be given.

        Returns:
            Live views of the outputs and of ``blobs``.

        Raises:
            NetError: The inputs given are not the net's.
            ShapeError: An input does not fit its blob.
        """
        with self._net.lock:  # so that no other thread's inputs come in between
            self._set(kwargs, self.inputs, "inputs", diff=False)
            self._net.forward(start, end)
        tops = self.outputs if end is None else self.top_names[end]
        return {name: self.blobs[name].data for name in dict.fromkeys([*tops, *(blobs or ())])}

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: ArrayLike,
    ) -> Arrays:
        """Run the net backward.

        Args:
            diffs: Blobs whose gradients to return besides those of the inputs.
            start: First layer to run, from the end.
            end: Last layer to run; the gradients of its bottoms are then returned.
            kwargs: A gradient for each output. With any, all outputs must be given.

        Returns:
            Live views of the gradients.

        Raises:
            NetError: The outputs given are not the net's.
            ShapeError: A gradient does not fit its blob.
        """
        with self._net.lock:
            self._set(kwargs, self.outputs, "outputs", diff=True)
            self._net.backward(start, end)
        bottoms = self.inputs if end is None else self.bottom_names[end]
        return {name: self.blobs[name].diff for name in dict.fromkeys([*bottoms, *(diffs or ())])}

    def _set(self, given: Mapping[str, ArrayLike], names: list[str], what: str, diff: bool) -> None:
        """Fill all blobs of these names, or none where nothing is given."""
        if not given:
            return
        if set(given) != set(names):
            message = f"the net's {what} are {names}, given are {list(given)}"
            raise NetError(message)
        for name, value in given.items():
            array, blob = np.asarray(value), self.blobs[name]
            if array.shape[:1] != blob.shape[:1]:
                message = (
                    f"blob {name!r} holds {blob.shape[:1]} items, given are {array.shape[:1]}; "
                    "reshape the blob first"
                )
                raise ShapeError(message)
            view = blob.diff if diff else blob.data
            try:
                view[...] = array
            except ValueError:
                message = (
                    f"blob {name!r} is {blob.shape}, the array given is {array.shape}; "
                    "reshape one of them"
                )
                raise ShapeError(message) from None

    def _forward(self, start: int, end: int) -> float:
        return self._net.forward(start, end)

    def _backward(self, start: int, end: int) -> None:
        self._net.backward(start, end)

    def forward_all(self, blobs: Iterable[str] | None = None, **kwargs: Any) -> Arrays:
        """Run any number of items through the net, in batches of its size; return copies."""
        wanted = list(blobs or ())
        found = _Found([*self.outputs, *wanted])
        with self._net.lock:
            for batch in self._batch(kwargs):
                found.add(self.forward(wanted, None, None, **batch))
        return found.arrays(_count(kwargs))

    def forward_backward_all(
        self, blobs: Iterable[str] | None = None, diffs: Iterable[str] | None = None, **kwargs: Any
    ) -> tuple[Arrays, Arrays]:
        """Run any number of items forward and backward, in batches of the net's size.

        Args:
            blobs: Blobs whose data to return besides the outputs.
            diffs: Blobs whose gradients to return besides those of the inputs.
            kwargs: Arrays for the inputs, gradients for the outputs; where there are none, the
                blobs are used as they are.

        Returns:
            Copies of the data and of the gradients.
        """
        data, gradients = list(blobs or ()), list(diffs or ())
        outs, backs = _Found([*self.outputs, *data]), _Found([*self.inputs, *gradients])
        forward, backward = (
            self._batch({name: kwargs[name] for name in names if name in kwargs})
            for names in (self.inputs, self.outputs)
        )
        none: Arrays = {}
        with self._net.lock:
            for up, down in zip_longest(forward, backward, fillvalue=none):
                outs.add(self.forward(data, None, None, **up))
                backs.add(self.backward(gradients, None, None, **down))
        return outs.arrays(_count(kwargs)), backs.arrays(_count(kwargs))

    def _batch(self, blobs: Mapping[str, Any]) -> Iterator[Arrays]:
        """Cut arrays into batches of the net's size; the last one is filled up with zeros."""
        if not blobs:
            return
        size = self.blobs[next(iter(blobs))].shape[0]
        for start in range(0, _count(blobs), size):
            part = {name: np.asarray(a)[start : start + size] for name, a in blobs.items()}
            yield {
                name: np.concatenate([a, np.zeros((size - len(a), *a.shape[1:]), a.dtype)])
                for name, a in part.items()
            }

    def set_input_arrays(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Let the net's first layer, a ``MemoryData``, give the rows of these arrays.

        Args:
            data: Shape: (n, C, H, W), n a multiple of the batch size; used without a copy where
                it is float32 and contiguous.
            labels: Shape: (n,) or (n, 1, 1, 1).

        Raises:
            NetError: The first layer is another.
            ShapeError: The arrays have other shapes.
            DataError: n is not a multiple of the batch size.
        """
        self._set_input_arrays(data, labels)

    def _set_input_arrays(self, data: ArrayLike, labels: ArrayLike) -> None:
        first = self._net.layers[0]
        if not isinstance(first, MemoryData):
            message = (
                "set_input_arrays is for nets whose first layer is MemoryData; here it is "
                f"{first.name!r} ({first.type})"
            )
            raise NetError(message)
        first.reset(data, labels)

    def reshape(self) -> None:
        """Let every layer give its tops their shapes."""
        self._net.reshape()

    def clear_param_diffs(self) -> None:
        """Set the gradients of all parameters to zero."""
        self._net.clear_param_diffs()

    def before_forward(self, callback: Hook) -> None:
        """Call a function with the layer's index before each layer's forward."""
        self._net.before_forward.append(callback)

    def after_forward(self, callback: Hook) -> None:
        """Call a function with the layer's index after each layer's forward."""
        self._net.after_forward.append(callback)

    def before_backward(self, callback: Hook) -> None:
        """Call a function with the layer's index before each layer's backward."""
        self._net.before_backward.append(callback)

    def after_backward(self, callback: Hook) -> None:
        """Call a function, or an ``NCCL``, with the layer's index after each layer's backward."""
        self._net.after_backward.append(callback)

    # -- weights -------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the parameters to a caffemodel, whatever the path's ending.

        Raises:
            WeightsError: ``copy_from`` would take what has this ending for another format.
        """
        file = pathlib.Path(path_of(path))
        if file.suffix in ARRAYS:
            message = (
                f"net.save writes a caffemodel, which could not be read back from {file}; call it "
                f".caffemodel, or convert it with: demitasse weights export FILE {file.name}"
            )
            raise WeightsError(message)
        with self._net.lock:
            save_caffemodel(self._net.structure, file, write_diff=False)

    def save_hdf5(self, path: Path, write_diff: bool = False) -> None:
        """Write the parameters to an HDF5 file."""
        self._net.save_hdf5(path_of(path), write_diff)

    def copy_from(self, path: Path) -> None:
        """Load parameters by layer name from a file of weights, in any format."""
        self._net.load(path_of(path))

    def load_hdf5(self, path: Path) -> None:
        """Load parameters by layer name from an HDF5 file."""
        self._net.load(path_of(path))

    def share_with(self, other: Net) -> None:
        """Hold the same parameters as the layers of the same names in another net."""
        self._net.share_trained_layers_with(other._net)

    def __getattr__(self, name: str) -> Any:
        """Say of methods that only the first versions of Caffe had what to do in their place."""
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if instead := instead_of(name):
            message += f"; Caffe's first versions had it: {instead}"
        raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        return f"pycaffe.{self._net!r}"

    def _repr_html_(self) -> str:
        return html_of(self._net)


class NetVec(list[Net]):
    """Nets, such as a solver's test nets."""


class _Found:
    """The rows of blobs, collected from batch to batch."""

    def __init__(self, names: Iterable[str]) -> None:
        self.rows: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def add(self, batch: Arrays) -> None:
        for name, array in batch.items():
            self.rows[name].extend(array.copy())

    def arrays(self, count: int) -> Arrays:
        return {name: np.asarray(rows)[:count] for name, rows in self.rows.items()}


def _count(arrays: Mapping[str, Any]) -> int:
    """Return the number of items in the arrays, which all have the same."""
    return len(next(iter(arrays.values())))


def _arguments(*args: Any, **kwargs: Any) -> tuple[Phase | int, Any, int, Sequence[str]]:
    """Sort out the two ways to make a net; the older one names the weights before the phase."""
    names: tuple[str, ...] = ("phase", "level", "stages", "weights")
    if args and not hasattr(args[0], "__index__"):
        names = ("weights", "phase")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given.setdefault("phase", default_phase())
    unknown = set(given) - {"phase", "level", "stages", "weights"}
    if unknown or given["phase"] is None or len(args) > len(names):
        shown = ", ".join([*map(repr, args), *(f"{name}={kwargs[name]!r}" for name in kwargs)])
        message = f"Net(file, phase, level=0, stages=None, weights=None), not Net(file, {shown})"
        if not unknown and given["phase"] is None:
            message += "; the phase is missing, caffe.TRAIN or caffe.TEST"
        raise TypeError(message)
    weights = given.get("weights")
    weights = None if weights is None else path_of(weights)
    return given["phase"], weights, given.get("level", 0), given.get("stages") or ()
