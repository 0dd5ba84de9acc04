"""Net: a graph of layers that computes a loss and its gradients.

Source: Caffe, ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from demitasse.backends.arrays import Array
from demitasse.blob import Blob, epoch
from demitasse.config import settings
from demitasse.device import Device, choose_device
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.layers import LayerContext
from demitasse.layers.base import Clock
from demitasse.memory import SyncedMemory, transfers
from demitasse.memory.leases import leases_alive
from demitasse.net.assembly import assemble, called
from demitasse.net.debug import NetDebug
from demitasse.net.predict import run_in_batches
from demitasse.net.structure import NetStructure
from demitasse.plan import Plan
from demitasse.plan.liveness import Allocator, Keep, bytes_taken, hidden_blobs, kept_names
from demitasse.proto import (
    NetParameter,
    Phase,
    ReadNet,
    read_net,
    upgrade_net,
)
from demitasse.weights.hdf5 import write_hdf5_weights
from demitasse.weights.load import load_into
from demitasse.weights.pairing import LoadReport, OnMismatch, matched
from demitasse.weights.save import save

__all__ = ["Net"]

Where = int | str | None
Callback = Callable[[int], None]


class Net(NetStructure):
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
        keep: The names of the blobs to keep besides inputs and outputs, or "outputs" for those
            alone; None keeps all. In phase TEST the net then only runs forward: other blobs share
            buffers, some are not computed at all, and reading one is an error. In phase TRAIN all
            data is kept, and other blobs' gradients share buffers.
        lenient: Whether fields that are not known are left out with a warning, not refused.
        rank: Which of ``ranks`` data-parallel workers this is.
        ranks: How many of them there are.

    Attributes:
        device: Where it runs; ``to`` moves it.
        plan: How its layers run.
        debug_info: Whether passes write mean absolute values of everything to the log.
        before_forward, after_forward: Called with a layer's index around its forward.
        before_backward, after_backward: The same around its backward.

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
        keep: Keep = None,
        lenient: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if dtype not in {"float32", "float64"}:
            message = f"a net computes in float32 or float64, not {dtype!r}"
            raise ConfigError(message)
        read = _read(source, lenient)
        param, file = read.message, read.source
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
            base_dir=Path(base_dir)
            if base_dir is not None
            else Path(file).parent
            if file
            else None,
            rank=rank,
            ranks=ranks,
            python_layers=settings.get("python_layers"),
            clock=Clock(),
        )
        origins = [read.origin(i) for i in range(len(param.layer))]
        with self.device.backend.enter():
            super().__init__(assemble(param, self._context, origins))
        self._source = param
        lowered = settings.get("plan") if plan is None else plan
        self._kept = kept_names(keep, self.blob_names)
        self._allocator: Allocator | None = None
        self.plan = self._planned(lowered=lowered)
        self._memories: tuple[int, list[SyncedMemory]] = (-1, [])
        self.debug_info = param.debug_info
        self.before_forward: list[Callback] = []
        self.after_forward: list[Callback] = []
        self.before_backward: list[Callback] = []
        self.after_backward: list[Callback] = []
        for one in _several(weights):
            self.load(one)

    @property
    def clock(self) -> Clock:
        """Counter of TRAIN passes that random numbers are keyed by."""
        return self._context.clock

    @property
    def passes(self) -> int:
        """Forward passes in phase TRAIN so far."""
        return self._context.clock.passes

    @property
    def blob_bytes(self) -> int:
        """Bytes that the data of the blobs takes at present, on host and device together."""
        return bytes_taken(blob.data_memory for blob in self.blob_list)

    @property
    def gradient_bytes(self) -> int:
        """Bytes that the gradients of the blobs take at present, on host and device together."""
        return bytes_taken(blob.diff_memory for blob in self.blob_list)

    @property
    def base_dir(self) -> Path | None:
        """Folder of the prototxt, where named files are looked for too."""
        return self._context.base_dir

    # -- passes --------------------------------------------------------------------------------

    def forward(self, start: Where = None, end: Where = None) -> float:
        """Run layers from ``start`` to ``end``, both included, by name or index; by default all.

        Returns:
            The sum over loss tops of their value times their weight.
        """
        first = 0 if start is None else self.layer_number(start)
        last = len(self.layers) - 1 if end is None else self.layer_number(end)
        with self.device.backend.enter(), self._pass(first, last, backward=False):
            loss = self._total(self._forward(first, last))
        if self.phase == "TRAIN":
            self._context.clock.passes += 1
        return loss

    def backward(self, start: Where = None, end: Where = None) -> None:
        """Run layers from ``start`` down to ``end``, both included; by default all.

        Raises:
            NetError: The net is one of phase TEST that was made with ``keep``.
        """
        if self._allocator is not None and not self._allocator.backward:
            message = (
                "a net in phase TEST made with keep=... only runs forward; leave keep out to run "
                "backward"
            )
            raise NetError(message)
        first = len(self.layers) - 1 if start is None else self.layer_number(start)
        last = 0 if end is None else self.layer_number(end)
        with self.device.backend.enter(), self._pass(first, last, backward=True):
            self._backward(first, last)
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
        forward = self.before_forward or self.after_forward
        backward = self.before_backward or self.after_backward
        if not (forward or backward or self.debug_info):
            return self.plan.forward(first, last)
        # layer by layer, so that no layers run as one and each has its own gradient
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

    @contextmanager
    def _pass(self, first: int, last: int, *, backward: bool) -> Iterator[None]:
        """Prepare the memories for a pass over some layers, and release them after it."""
        allocator = self._allocator
        if allocator is not None and allocator.backward != backward:
            allocator = None
        if allocator is not None:
            if not backward:
                self.plan.reshape()
            allocator.update(self.plan.runs)
            allocator.check_reads(first, last)
            allocator.arena.open = True
        try:
            if leases_alive():
                for memory in self._all_memories():
                    memory.before_pass()
            yield
            if leases_alive():
                for memory in self._all_memories():
                    memory.after_pass()
        finally:
            if allocator is not None:
                allocator.arena.open = False

    def _planned(self, *, lowered: bool) -> Plan:
        """Return a plan of the layers, and let the blobs that are not kept share buffers."""
        places = self._parts.places()
        if self._kept is None:
            return Plan(places, lowered=lowered)
        if self._allocator is not None:
            self._allocator.release()
        wanted = self._kept.union(self.inputs, self.outputs)
        kept = [blob for name, blob in self.blobs.items() if name in wanted]
        if self.phase == "TRAIN":
            self._allocator = Allocator(places, kept, backward=True)
            return Plan(places, lowered=lowered)
        places = [replace(place, backward=False) for place in places]
        self._allocator = Allocator(places, kept)
        return Plan(places, lowered=lowered, hidden=hidden_blobs(places, kept))

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
                pairs += matched(called(mine), mine.blobs, layer.blobs)
        for blob, source in pairs:
            blob.share_data(source)

    def load(
        self,
        source: str | os.PathLike[str] | NetParameter,
        on_mismatch: OnMismatch = "error",
    ) -> LoadReport:
        """Load parameters from a file of weights or a message, by layer name.

        Args:
            source: Where they are.
            on_mismatch: What to do with a layer whose parameters have other shapes or another
                number: "error" refuses the source, and nothing changes; "skip" leaves it out.

        Returns:
            Which layers were loaded, ignored (not in this net), missing (not in the source) and
            mismatched.
        """
        return load_into(self, source, on_mismatch)

    def save(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write the parameters to a caffemodel, atomically."""
        save(self, Path(path), write_diff)

    def save_hdf5(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write the parameters to an HDF5 file, atomically; shared ones once."""
        write_hdf5_weights(self, Path(path), write_diff)

    # -- devices and inputs --------------------------------------------------------------------

    def to(self, device: str | Device) -> Self:
        """Move to another device; blobs follow when they are used."""
        self.device = self._context.device = Device(device)
        for blob in (*self.blob_list, *self.params_list):
            blob.to(self.device)
        for layer in self.layers:
            layer.to(self.device)
        self.plan = self._planned(lowered=self.plan.lowered)
        return self

    def clone(self, device: str | Device | None = None) -> Net:
        """Return another net of the same message, parameters and seed, here or elsewhere."""
        copy = Net(
            self._source,
            device=self.device if device is None else device,
            dtype=self.dtype,
            plan=self.plan.lowered,
            seed=self.seed,
            base_dir=self.base_dir,
            keep=self._kept,
            rank=self._context.rank,
            ranks=self._context.ranks,
        )
        for mine, theirs in zip(self.learnable_params, copy.learnable_params, strict=True):
            theirs.copy_from(mine)
        copy.clock.passes = self.clock.passes
        return copy

    def predict(self, inputs: dict[str, Any] | Any, batch: int | None = None) -> dict[str, Any]:
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
        return run_in_batches(self._run, given, batch)

    def _run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Fill inputs, run forward and return copies of the outputs, all as numpy arrays."""
        for name, array in inputs.items():
            self.set_input(name, array)
        self.forward()
        return {name: self.blobs[name].cpu_data().copy() for name in self.outputs}

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


def _read(source: str | os.PathLike[str] | NetParameter, lenient: bool) -> ReadNet:
    if isinstance(source, NetParameter):
        param = NetParameter()
        param.CopyFrom(source)
        upgrade_net(param)
        return ReadNet(param)
    return read_net(source, lenient=lenient)


def _phase_number(phase: str | int) -> Any:
    known = dict(Phase.items())
    if phase in known:
        return known[str(phase)]
    if phase in known.values():
        return phase
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
