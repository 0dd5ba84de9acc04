"""``caffe.Net`` over the engine's Net, and the list types of its attributes.

Source: Caffe, ``python/caffe/pycaffe.py`` and ``python/caffe/_caffe.cpp``.
"""

import os
import pathlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from demitasse import net as engine
from demitasse.blob import Blob
from demitasse.compat.pycaffe.common import begin_log, default_phase
from demitasse.core.text import html_of
from demitasse.errors import ErrorCode, NetError, ShapeError, WeightsError
from demitasse.io.weights.load import LoadReport, OnMismatch
from demitasse.io.weights.save import ARRAYS, save_caffemodel
from demitasse.layers.data_layers.memory_data import MemoryData
from demitasse.layers.python import Python
from demitasse.layers.user_layer import BlobVec, Phase

Arrays = dict[str, np.ndarray]
Rows = dict[str, list[np.ndarray]]
Hook = Callable[[int], None]


class BoolVec(list[bool]):
    """Flags, such as the gradients that a layer computes."""


class DtypeVec(list[float]):
    """Numbers, such as loss weights."""


class IntVec(list[int]):
    """Integers, such as indices of blobs in a net."""


class LayerVec(list[Any]):
    """Layers; a ``Python`` layer is represented by the user's object."""


class StringVec(list[str]):
    """Names."""


DEPRECATED_METHODS = {
    "set_phase_test": "name the phase when the net is made: Net(file, weights, caffe.TEST)",
    "set_phase_train": "name the phase when the net is made: Net(file, weights, caffe.TRAIN)",
    "set_mode_cpu": "call caffe.set_mode_cpu() before the net is made",
    "set_mode_gpu": "call caffe.set_mode_gpu() before the net is made",
    "set_device": "call caffe.set_device(number) before the net is made",
    **dict.fromkeys(
        ("set_mean", "set_input_scale", "set_raw_scale", "set_channel_swap"),
        "give it to caffe.Classifier when that is made, or to a caffe.io.Transformer",
    ),
    **dict.fromkeys(("preprocess", "deprocess"), "a caffe.io.Transformer has it"),
}
"""Methods of Caffe's first versions, and their replacement."""

FileName = str | bytes | os.PathLike[str]


class _Logged(engine.Net):
    """A net that logs the layers of a file of weights that it does not have, as Caffe does."""

    def load(self, source: Any, on_mismatch: OnMismatch = "raise") -> LoadReport:
        """Load parameters, and log what was left out."""
        return _load(self, source, on_mismatch)


def _load(net: engine.Net, source: Any, on_mismatch: OnMismatch = "raise") -> LoadReport:
    from demitasse.training.nets import log_load_report

    report = engine.Net.load(net, source, on_mismatch)
    log_load_report(report, source)
    return report


class Net:
    """A net: ``Net(file, phase, level=0, stages=None, weights=None)``.

    The older ``Net(file, weights, phase)`` is accepted too.

    Raises:
        PrototxtError: The file cannot be read.
        NetError: The layers do not fit together.
    """

    def __init__(self, network_file: FileName, *args: Any, **kwargs: Any) -> None:
        phase, weights, level, stages = _arguments(*args, **kwargs)
        begin_log()
        self._net: engine.Net = _Logged(
            os.fsdecode(network_file), int(phase), level=level, stages=stages, weights=weights
        )
        self._fill()

    @classmethod
    def _over(cls, net: engine.Net) -> Self:
        """Return the pycaffe net of an engine's net."""
        self = cls.__new__(cls)
        self._net = net
        self._fill()
        return self

    def _fill(self) -> None:
        net, ids = self._net, self._net.structure
        params: list[tuple[str, BlobVec]] = []
        for layer in net.layers:
            if not isinstance(layer.blobs, BlobVec):
                layer.blobs = BlobVec.of_net(layer.blobs)  # scripts assign blobs to its items
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
        self.inputs = self._input_list = list(net.inputs)  # scripts read the second name, too
        self.outputs = self._output_list = list(net.outputs)
        self.top_names = self._names(ids.top_ids)
        self.bottom_names = self._names(ids.bottom_ids)

    def _names(self, ids: Callable[[int], list[int]]) -> OrderedDict[str, list[str]]:
        blobs = self._net.blob_names
        return OrderedDict(
            (name, [blobs[i] for i in ids(index)])
            for index, name in enumerate(self._net.layer_names)
        )

    # -- structure, by index -------------------------------------------------------------------

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
        return BoolVec(self._net.structure.needs.layers)

    @property
    def _memory_used(self) -> int:
        return self._net.structure.memory_used

    # -- passes --------------------------------------------------------------------------------

    def forward(
        self, blobs: Iterable[str] | None = None, start: str | None = None, end: str | None = None,
        **kwargs: ArrayLike,
    ) -> Arrays:  # fmt: skip
        """Run the net forward.

        Args:
            blobs: Blobs to return in addition to the outputs.
            start: First layer to run.
            end: Last layer to run; the outputs are then its tops.
            kwargs: An array for each net input, broadcast to the blob; the lengths of the first
                axes must be equal. Either all inputs are given or none.

        Returns:
            Live views of the outputs and of ``blobs``.

        Raises:
            NetError: The given inputs are not the net's.
            ShapeError: An input does not fit its blob.
        """
        with self._net.lock:  # no other thread may set inputs in between
            self._set(kwargs, self.inputs, "inputs", diff=False)
            self._net.forward(start, end)
        tops = self.outputs if end is None else self.top_names[end]
        return {name: self.blobs[name].data for name in dict.fromkeys([*tops, *(blobs or ())])}

    def backward(
        self, diffs: Iterable[str] | None = None, start: str | None = None, end: str | None = None,
        **kwargs: ArrayLike,
    ) -> Arrays:  # fmt: skip
        """Run the net backward from layer ``start`` to ``end``; errors are those of ``forward``.

        ``kwargs`` has a gradient for each output, or none. Returns live views of the gradients of
        the inputs, or of the bottoms of ``end``, and of ``diffs``.
        """
        with self._net.lock:
            self._set(kwargs, self.outputs, "outputs", diff=True)
            self._net.backward(start, end)
        bottoms = self.inputs if end is None else self.bottom_names[end]
        return {name: self.blobs[name].diff for name in dict.fromkeys([*bottoms, *(diffs or ())])}

    def _set(self, given: Mapping[str, ArrayLike], names: list[str], what: str, diff: bool) -> None:
        """Fill all blobs of these names; do nothing if no array is given."""
        if not given:
            return
        if set(given) != set(names):
            message = f"the net's {what} are {names}, given are {list(given)}"
            raise NetError(message, code=ErrorCode.MISSING, expected=names, got=list(given))
        for name, value in given.items():
            array, blob = np.asarray(value), self.blobs[name]
            try:
                if array.shape[:1] != blob.shape[:1]:
                    raise ValueError  # one item is not broadcast to a batch
                (blob.diff if diff else blob.data)[...] = array
            except ValueError:
                message = (
                    f"blob {name!r} is {blob.shape}, the array given is {array.shape}; "
                    "reshape one of them"
                )
                raise ShapeError(
                    message, code=ErrorCode.SHAPE_MISMATCH, blob=name, got=array.shape,
                    expected=blob.shape,
                ) from None  # fmt: skip

    def _forward(self, start: int, end: int) -> float:
        return self._net.forward(start, end)

    def _backward(self, start: int, end: int) -> None:
        self._net.backward(start, end)

    def forward_all(self, blobs: Iterable[str] | None = None, **kwargs: Any) -> Arrays:
        """Run any number of items through the net, in batches of its size; return copies.

        Zeros fill the last batch. A blob without axes, such as a loss, has a value for each batch.
        """
        wanted, count = list(blobs or ()), _count(kwargs)
        rows: Rows = {name: [] for name in [*self.outputs, *wanted]}
        with self._net.lock:
            for batch in self._batch(kwargs):
                _append(rows, self.forward(wanted, None, None, **batch))
        return _first(rows, count)

    def forward_backward_all(
        self, blobs: Iterable[str] | None = None, diffs: Iterable[str] | None = None, **kwargs: Any
    ) -> tuple[Arrays, Arrays]:
        """Run any number of items forward and backward, in batches of the net's size.

        ``kwargs`` has arrays for the inputs and gradients for the outputs; without them the present
        content of the blobs is used. Returns copies of the data of the outputs and of ``blobs``,
        and of the gradients of the inputs and of ``diffs``.
        """
        data, gradients, count = list(blobs or ()), list(diffs or ()), _count(kwargs)
        outs: Rows = {name: [] for name in [*self.outputs, *data]}
        backs: Rows = {name: [] for name in [*self.inputs, *gradients]}
        forward, backward = (
            self._batch({name: kwargs[name] for name in names if name in kwargs})
            for names in (self.inputs, self.outputs)
        )
        none: Arrays = {}
        with self._net.lock:
            for up, down in zip_longest(forward, backward, fillvalue=none):
                _append(outs, self.forward(data, None, None, **up))
                _append(backs, self.backward(gradients, None, None, **down))
        return _first(outs, count), _first(backs, count)

    def _batch(self, blobs: Mapping[str, Any]) -> Iterator[Arrays]:
        """Split arrays into batches of the net's size; the last batch is padded with zeros."""
        if not blobs:
            return
        known = [name for name in blobs if name in self.blobs]  # forward refuses other names
        size = self.blobs[known[0]].shape[0] if known else 1
        for start in range(0, _count(blobs), size):
            part = {name: np.asarray(a)[start : start + size] for name, a in blobs.items()}
            yield {
                name: np.concatenate([a, np.zeros((size - len(a), *a.shape[1:]), a.dtype)])
                for name, a in part.items()
            }

    def set_input_arrays(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Set the arrays that the net's first layer, a ``MemoryData``, reads.

        Shapes: data (n, C, H, W), n a multiple of the batch size, not copied if float32 and
        contiguous; labels (n,) or (n, 1, 1, 1).

        Raises:
            NetError: The first layer has another type.
            ShapeError: The arrays have other shapes.
            DataError: n is not a multiple of the batch size.
        """
        first = self._net.layers[0]
        if not isinstance(first, MemoryData):
            message = (
                "set_input_arrays is for nets whose first layer is MemoryData; here it is "
                f"{first.name!r} ({first.type})"
            )
            raise NetError(message, code=ErrorCode.UNSUPPORTED, layer=first.name)
        first.reset(data, labels)

    _set_input_arrays = set_input_arrays  # of Caffe's compiled module

    def reshape(self) -> None:
        """Reshape the tops of all layers."""
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

    def save(self, path: FileName) -> None:
        """Write the parameters to a caffemodel, for any suffix of the path.

        Raises:
            WeightsError: ``copy_from`` reads files with this suffix in another format.
        """
        file = pathlib.Path(os.fsdecode(path))
        if file.suffix in ARRAYS:
            message = (
                f"net.save writes a caffemodel, which could not be read back from {file}; call it "
                f".caffemodel, or convert it with: demitasse weights export FILE {file.name}"
            )
            raise WeightsError(message, code=ErrorCode.CONFLICT, file=str(file))
        with self._net.lock:
            save_caffemodel(self._net.structure, file, write_diff=False)

    def save_hdf5(self, path: FileName, write_diff: bool = False) -> None:
        """Write the parameters to an HDF5 file."""
        self._net.save_hdf5(os.fsdecode(path), write_diff)

    def copy_from(self, path: FileName) -> None:
        """Load parameters by layer name from a file of weights, in any format."""
        _load(self._net, os.fsdecode(path))

    load_hdf5 = copy_from  # the file tells its format

    def share_with(self, other: "Net") -> None:
        """Share the parameters of another net's layers with equal names."""
        self._net.share_trained_layers_with(other._net)

    def __getattr__(self, name: str) -> Any:
        """Name the replacement of methods that only Caffe's first versions had."""
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if advice := DEPRECATED_METHODS.get(name):
            message += f"; Caffe's first versions had it: {advice}"
        raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        return f"pycaffe.{self._net!r}"

    def _repr_html_(self) -> str:
        return html_of(self._net)


class NetVec(list[Net]):
    """Nets, such as a solver's test nets."""


def _append(rows: Rows, batch: Arrays) -> None:
    for name, array in batch.items():
        rows[name].extend(np.atleast_1d(array.copy()))


def _first(rows: Rows, count: int) -> Arrays:
    """Return the rows of the given items, without those of the last batch's padding."""
    return {name: np.asarray(values)[:count] for name, values in rows.items()}


def _count(arrays: Mapping[str, Any]) -> int:
    """Return the number of items, which must be equal in all arrays."""
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        message = (
            f"got items {counts}, expected as many for each input; without arrays, call forward()"
        )
        raise NetError(message, code=ErrorCode.COUNT_MISMATCH, got=counts)
    return next(iter(counts.values()))


def _arguments(*args: Any, **kwargs: Any) -> tuple[Phase | int, Any, int, Sequence[str]]:
    """Return the arguments of either signature; in the older one the weights come first."""
    names: tuple[str, ...] = ("phase", "level", "stages", "weights")
    if args and not hasattr(args[0], "__index__"):
        names = ("weights", "phase")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given.setdefault("phase", default_phase())
    unknown = set(given) - {"phase", "level", "stages", "weights"}
    numbers = given["phase"], given.setdefault("level", 0)
    if unknown or len(args) > len(names) or not all(hasattr(n, "__index__") for n in numbers):
        text = ", ".join([*map(repr, args), *(f"{name}={kwargs[name]!r}" for name in kwargs)])
        message = f"Net(file, phase, level=0, stages=None, weights=None), not Net(file, {text})"
        if not unknown and given["phase"] is None:
            message += "; the phase is missing, caffe.TRAIN or caffe.TEST"
        raise TypeError(message)
    weights = None if given.get("weights") is None else os.fsdecode(given["weights"])
    return given["phase"], weights, given["level"], given.get("stages") or ()
