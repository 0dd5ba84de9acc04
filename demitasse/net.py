"""Net: a graph of layers that computes a loss and its gradients.

Source: Caffe, ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from demitasse import io
from demitasse.assembly import Assembly, assemble, called
from demitasse.backends.base import Array
from demitasse.blob import Blob, epoch
from demitasse.config import settings
from demitasse.debug import NetDebug
from demitasse.device import Device, choose_device
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.layers import Layer, LayerContext
from demitasse.layers.base import Clock
from demitasse.memory import SyncedMemory, leases_alive, transfers
from demitasse.plan import Plan
from demitasse.proto import NetParameter, Phase, read_net_params, upgrade_net

__all__ = ["Net"]

Where = int | str | None
Callback = Callable[[int], None]


class Net:
    """Layers, the blobs between them, and the passes over them.

    Args:
        source: A prototxt file or a message.
        phase: "TRAIN" or "TEST"; None takes the file's state.
        weights: Files or messages to load parameters from, by layer name; one or several.
        device: Where it runs; None asks the configuration.
        level: Level of the net's state, when ``phase`` is given.
        stages: Stages added to the file's state, when ``phase`` is given.
        dtype: "float32", or "float64" for gradient checks.
        plan: Whether backends may lower operations; None asks the configuration.
        seed: Key of all its random numbers; None asks the configuration.
        base_dir: Folder where named files are looked for besides the working directory; by
            default that of ``source``.
        rank: Which of ``ranks`` data-parallel workers this is.
        ranks: How many of them there are.

    Attributes:
        name: Name in the message.
        phase: "TRAIN" or "TEST".
        layers: The layers, splits included, in order.
        blob_list: The blobs, in order of appearance.
        params_list: All parameter blobs, in order of layers, shared ones again for each sharer.
        learnable_params: The parameter blobs that own their memory.

    Raises:
        PrototxtError: The file cannot be read.
        NetError: Layers do not fit together.
        ShapeError: A layer cannot take the shape of a bottom.
        DeviceError: The device is not there.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | NetParameter,
        phase: str | int | None = None,
        *,
        weights: Any = None,
        device: str | Device | None = None,
        level: int = 0,
        stages: Sequence[str] = (),
        dtype: str = "float32",
        plan: bool | None = None,
        seed: int | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if dtype not in {"float32", "float64"}:
            message = f"a net computes in float32 or float64, not {dtype!r}"
            raise ConfigError(message)
        param, file = _read(source)
        if phase is not None:
            param.state.phase = _phase_number(phase)
            param.state.level = level
            param.state.stage.extend(stages)
        self.device, self.device_from = choose_device(device)
        self.seed = _seed(seed)
        self.dtype = dtype
        self._context = LayerContext(
            device=self.device,
            dtype=dtype,
            seed=self.seed,
            base_dir=Path(base_dir) if base_dir is not None else Path(file).parent if file else None,
            rank=rank,
            ranks=ranks,
            python_layers=settings.get("python_layers"),
            clock=Clock(),
        )
        with self.device.backend.enter():
            self._parts = assemble(param, self._context, None, file)
        self._index(self._parts)
        lowered = settings.get("plan") if plan is None else plan
        self.plan = Plan(self._parts.places(), lowered=lowered)
        self._memories: tuple[int, list[SyncedMemory]] = (-1, [])
        self.debug_info = param.debug_info
        self.before_forward: list[Callback] = []
        self.after_forward: list[Callback] = []
        self.before_backward: list[Callback] = []
        self.after_backward: list[Callback] = []
        for one in _several(weights):
            self.load(one)

    def _index(self, parts: Assembly) -> None:
        self.name = parts.param.name
        self.phase = Phase.Name(parts.param.state.phase)
        self.layers: list[Layer] = parts.layers
        self.blob_list: list[Blob] = parts.blobs
        self.params_list: list[Blob] = parts.params
        self.learnable_params = [parts.params[i] for i in parts.table.learnable]
        self._layer_numbers = {layer.name: i for i, layer in reversed([*enumerate(self.layers)])}

    # -- what it is ----------------------------------------------------------------------------

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers, in order."""
        return [layer.name for layer in self.layers]

    @property
    def blob_names(self) -> list[str]:
        """Names of the blobs, in order of appearance."""
        return list(self._parts.graph.blobs)

    @property
    def blobs(self) -> dict[str, Blob]:
        """The blobs by name, in order of appearance."""
        return dict(zip(self._parts.graph.blobs, self.blob_list, strict=True))

    @property
    def params(self) -> dict[str, list[Blob]]:
        """The parameters of each layer that has any."""
        return {layer.name: layer.blobs for layer in self.layers if layer.blobs}

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs the caller fills."""
        return [self._parts.graph.blobs[i] for i in self._parts.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs nobody reads, in alphabetical order."""
        return [self._parts.graph.blobs[i] for i in self._parts.graph.outputs]

    def bottom_ids(self, layer: int) -> list[int]:
        """Return the numbers of the blobs a layer reads."""
        return list(self._parts.graph.nodes[layer].bottoms)

    def top_ids(self, layer: int) -> list[int]:
        """Return the numbers of the blobs a layer writes."""
        return list(self._parts.graph.nodes[layer].tops)

    @property
    def blob_loss_weights(self) -> list[float]:
        """The loss weight of each blob."""
        weights = [0.0] * len(self.blob_list)
        for layer, node in zip(self.layers, self._parts.graph.nodes, strict=True):
            for i, top in enumerate(node.tops):
                weights[top] = layer.loss(i) or weights[top]
        return weights

    @property
    def layer_need_backward(self) -> list[bool]:
        """For each layer, whether its backward runs."""
        return list(self._parts.needs.layers)

    @property
    def bottom_need_backward(self) -> list[list[bool]]:
        """For each layer and bottom, whether that gradient is computed."""
        return [list(flags) for flags in self._parts.needs.bottoms]

    @property
    def memory_used(self) -> int:
        """Bytes of all tops, those in place counted again, as Caffe's figure does."""
        return self._parts.memory_used

    @property
    def param_table(self) -> Any:
        """Owners, names and learning factors of the parameters (``graph.ParamTable``)."""
        return self._parts.table

    @property
    def params_lr(self) -> list[float]:
        """Learning rate factor of each learnable parameter."""
        return list(self._parts.table.lr_mult)

    @property
    def params_weight_decay(self) -> list[float]:
        """Weight decay factor of each learnable parameter."""
        return list(self._parts.table.decay_mult)

    @property
    def param_owners(self) -> list[int]:
        """For each parameter, whose memory it shares; -1 when it is its own."""
        return list(self._parts.table.owners)

    @property
    def param_display_names(self) -> list[str]:
        """Name of each parameter, or its index in its layer."""
        return list(self._parts.table.display_names)

    @property
    def param_layer_indices(self) -> list[tuple[int, int]]:
        """(layer, index in it) of each parameter."""
        return list(self._parts.table.layer_indices)

    @property
    def learnable_param_ids(self) -> list[int]:
        """For each parameter, which learnable parameter it is."""
        return list(self._parts.table.learnable_ids)

    @property
    def clock(self) -> Clock:
        """Counter of TRAIN passes that random numbers are keyed by."""
        return self._context.clock

    @property
    def passes(self) -> int:
        """Forward passes in phase TRAIN so far."""
        return self._context.clock.passes

    @property
    def base_dir(self) -> Path | None:
        """Folder of the prototxt, where named files are looked for too."""
        return self._context.base_dir

    def has_blob(self, name: str) -> bool:
        """Whether there is a blob of this name."""
        return name in self._parts.graph.blobs

    def blob_by_name(self, name: str) -> Blob:
        """Return the blob of this name.

        Raises:
            NetError: There is none.
        """
        if not self.has_blob(name):
            message = f"no blob {name!r} in net {self.name!r}; it has {', '.join(self.blob_names)}"
            raise NetError(message)
        return self.blobs[name]

    def has_layer(self, name: str) -> bool:
        """Whether there is a layer of this name."""
        return name in self._layer_numbers

    def layer_by_name(self, name: str) -> Layer:
        """Return the first layer of this name.

        Raises:
            NetError: There is none.
        """
        return self.layers[self.layer_number(name)]

    def layer_number(self, layer: int | str) -> int:
        """Return the index of a layer given by name or index.

        Raises:
            NetError: There is no such layer.
        """
        if isinstance(layer, str):
            if layer not in self._layer_numbers:
                message = (
                    f"no layer {layer!r} in net {self.name!r}; "
                    f"it has {', '.join(self.layer_names)}"
                )
                raise NetError(message)
            return self._layer_numbers[layer]
        number = layer + len(self.layers) if layer < 0 else layer
        if not 0 <= number < len(self.layers):
            message = f"no layer {layer} in net {self.name!r} of {len(self.layers)} layers"
            raise NetError(message)
        return number

    # -- passes --------------------------------------------------------------------------------

    def forward(self, start: Where = None, end: Where = None) -> float:
        """Run layers from ``start`` to ``end``, both included, by name or index; by default all.

        Returns:
            The sum over loss tops of their value times their weight.
        """
        first = 0 if start is None else self.layer_number(start)
        last = len(self.layers) - 1 if end is None else self.layer_number(end)
        with self.device.backend.enter():
            self._before_pass()
            terms = self._forward(first, last)
            loss = self._total(terms)
            self._after_pass()
        if self.phase == "TRAIN":
            self._context.clock.passes += 1
        return loss

    def backward(self, start: Where = None, end: Where = None) -> None:
        """Run layers from ``start`` down to ``end``, both included; by default all."""
        first = len(self.layers) - 1 if start is None else self.layer_number(start)
        last = 0 if end is None else self.layer_number(end)
        with self.device.backend.enter():
            self._before_pass()
            self._backward(first, last)
            self._after_pass()
        if self.debug_info:
            NetDebug(self).totals()

    def forward_backward(self) -> float:
        """Run forward and backward; return the loss."""
        loss = self.forward()
        self.backward()
        return loss

    def reshape(self) -> None:
        """Let every layer give its tops their shapes, without computing anything."""
        with self.device.backend.enter():
            self.plan.reshape()

    def synchronize(self) -> None:
        """Wait until the device has done everything it was given."""
        self.device.backend.synchronize()

    def _forward(self, first: int, last: int) -> list[Array]:
        if not (self.before_forward or self.after_forward or self.debug_info):
            return self.plan.forward(first, last)
        terms: list[Array] = []
        for index in range(first, last + 1):
            _call(self.before_forward, index)
            terms += self.plan.forward(index, index)
            if self.debug_info:
                NetDebug(self).forward(index)
            _call(self.after_forward, index)
        return terms

    def _backward(self, first: int, last: int) -> None:
        if not (self.before_backward or self.after_backward or self.debug_info):
            self.plan.backward(first, last)
            return
        for index in range(first, last - 1, -1):
            _call(self.before_backward, index)
            self.plan.backward(index, index)
            if self.debug_info and self._parts.needs.layers[index]:
                NetDebug(self).backward(index)
            _call(self.after_backward, index)

    def _total(self, terms: list[Array]) -> float:
        """Add up the loss and bring it to the host: the one number a pass waits for."""
        if not terms:
            return 0.0
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        if not self.device.shares_host:
            transfers.note(down=total.dtype.itemsize if hasattr(total.dtype, "itemsize") else 4)
        return float(self.device.backend.to_host(total))

    def _before_pass(self) -> None:
        if leases_alive():
            for memory in self._all_memories():
                memory.before_pass()

    def _after_pass(self) -> None:
        if leases_alive():
            for memory in self._all_memories():
                memory.after_pass()

    def _all_memories(self) -> list[SyncedMemory]:
        if self._memories[0] != epoch.value:
            blobs = [*self.blob_list, *self.params_list]
            found = {m.serial: m for b in blobs for m in (b.data_memory, b.diff_memory)}
            self._memories = (epoch.value, list(found.values()))
        return self._memories[1]

    # -- parameters ----------------------------------------------------------------------------

    def clear_param_diffs(self) -> None:
        """Set the gradients of all learnable parameters to zero."""
        for blob in self.learnable_params:
            blob.diff_memory.clear()

    def update(self) -> None:
        """Subtract its gradient from every learnable parameter."""
        with self.device.backend.enter():
            for blob in self.learnable_params:
                blob.update()

    def share_weights(self) -> None:
        """Let parameters of one name hold one memory again."""
        for blob, owner in zip(self.params_list, self._parts.table.owners, strict=True):
            if owner >= 0:
                blob.share_data(self.params_list[owner])
                blob.share_diff(self.params_list[owner])

    def share_trained_layers_with(self, other: Net) -> None:
        """Hold the same parameter data as the layers of the same names in another net.

        Raises:
            NetError: A layer has another number of parameters.
            ShapeError: A parameter has another shape.
        """
        pairs: list[tuple[Blob, Blob]] = []
        for layer in other.layers:
            if layer.blobs and self.has_layer(layer.name):
                mine = self.layer_by_name(layer.name)
                pairs += io.matched(called(mine), mine.blobs, layer.blobs)
        for blob, source in pairs:
            blob.share_data(source)

    def load(self, source: str | os.PathLike[str] | NetParameter) -> io.LoadReport:
        """Load parameters from a caffemodel, an HDF5 file or a message, by layer name.

        Nothing changes when something does not fit.

        Returns:
            Which layers were loaded, ignored (not in this net) and missing (not in the source).
        """
        return io.load_into(self, source)

    def to_proto(self, write_diff: bool = False) -> NetParameter:
        """Return the message of the net as built, with its parameters in it."""
        proto = NetParameter(name=self.name)
        for layer, node in zip(self.layers, self._parts.graph.nodes, strict=True):
            message = proto.layer.add()
            message.CopyFrom(layer.to_proto(write_diff))
            message.bottom[:] = node.param.bottom
            message.top[:] = node.param.top
        return proto

    def save(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write a caffemodel, atomically; HDF5 where the name ends in ``.h5``."""
        io.save(self, Path(path), write_diff)

    # -- devices and inputs --------------------------------------------------------------------

    def to(self, device: str | Device) -> Self:
        """Move to another device; blobs follow when they are used."""
        self.device = self._context.device = Device(device)
        for blob in (*self.blob_list, *self.params_list):
            blob.to(self.device)
        for layer in self.layers:
            layer.to(self.device)
        self.plan = Plan(self._parts.places(), lowered=self.plan.lowered)
        return self

    def predict(
        self, inputs: dict[str, Any] | Any, batch: int | None = None
    ) -> dict[str, Any]:
        """Run the net on arrays; any batch size.

        Args:
            inputs: An array for each net input, or one array where there is one input.
            batch: Run at most this many items at a time; None runs all at once.

        Returns:
            A copy of every output, as numpy arrays.

        Raises:
            NetError: Inputs are missing or unknown.
        """
        given = inputs if isinstance(inputs, dict) else {self._only_input(): inputs}
        unknown, missing = set(given) - set(self.inputs), set(self.inputs) - set(given)
        if unknown or missing:
            message = f"the inputs of net {self.name!r} are {self.inputs}, given are {list(given)}"
            raise NetError(message)
        return io.run_in_batches(self, given, batch)

    def _only_input(self) -> str:
        if len(self.inputs) != 1:
            message = f"net {self.name!r} has inputs {self.inputs}; give a dict of arrays"
            raise NetError(message)
        return self.inputs[0]

    def set_input(self, name: str, array: Any) -> None:
        """Reshape an input blob to an array and fill it.

        Raises:
            ShapeError: The array has an axis of a size that cannot be.
        """
        blob = self.blob_by_name(name)
        if not hasattr(array, "shape"):
            message = f"input {name!r} must be an array, it is {type(array).__name__}"
            raise ShapeError(message)
        blob.reshape(array.shape)
        blob.mutable_cpu_data()[...] = array

    def close(self) -> None:
        """Stop the threads and close the files of its layers."""
        for layer in self.layers:
            layer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Net({self.name!r}, {self.phase}, {len(self.layers)} layers on {self.device})"


def _read(source: str | os.PathLike[str] | NetParameter) -> tuple[NetParameter, str]:
    if isinstance(source, NetParameter):
        param = NetParameter()
        param.CopyFrom(source)
        upgrade_net(param)
        return param, ""
    return read_net_params(source), os.fspath(source)


def _phase_number(phase: str | int) -> Phase:
    known = dict(Phase.items())
    if phase in known:
        return known[str(phase)]
    if phase in known.values():
        return Phase.ValueType(phase) if hasattr(Phase, "ValueType") else phase  # type: ignore
    message = f"phase must be TRAIN or TEST, not {phase!r}"
    raise ConfigError(message)


def _seed(seed: int | None) -> int:
    chosen = settings.get("seed") if seed is None else seed
    return secrets.randbits(31) if chosen < 0 else int(chosen)


def _several(weights: Any) -> Iterable[Any]:
    if weights is None:
        return ()
    if isinstance(weights, (str, os.PathLike, NetParameter)):
        return (weights,)
    return tuple(weights)


def _call(callbacks: Sequence[Callback], index: int) -> None:
    for callback in callbacks:
        callback(index)
