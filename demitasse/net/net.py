"""Net: a graph of layers that computes a loss and its gradients.

Source: Caffe, ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self

from demitasse.backends.storage import Stored
from demitasse.blob import Blob
from demitasse.blob.given import host_array, is_on
from demitasse.core.config import settings
from demitasse.core.device import Device, choose_device
from demitasse.core.html_repr import html_of
from demitasse.core.out_of_memory import memory_errors_at
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, Phase
from demitasse.io.weights.hdf5 import write_hdf5_weights
from demitasse.io.weights.load import load_into
from demitasse.io.weights.pairing import LoadReport, OnMismatch, matched
from demitasse.io.weights.save import save
from demitasse.layers import LayerContext
from demitasse.layers.context import PassCounter
from demitasse.net.assembly import assemble, called
from demitasse.net.given import (
    choose_seed,
    choose_storage,
    folder,
    need_inference,
    phase_number,
    read_source,
    several,
)
from demitasse.net.labels import LabelCheck
from demitasse.net.launched import Launched
from demitasse.net.passes import Passes
from demitasse.net.predict import predict
from demitasse.net.running import Running
from demitasse.net.turn import Turn
from demitasse.plan.liveness import Keep, kept_names, names_in

__all__ = ["Net"]


class Net(Running):
    """Layers, the blobs between them, and the passes over them.

    Args:
        source: A prototxt file or a message.
        phase: "TRAIN" or "TEST"; None takes the file's state.
        weights: Files or messages to load parameters from, by layer name; one or several.
        device: Where it runs; None asks the configuration.
        level: Level of the net's state, when ``phase`` is given.
        stages: Stages added to the file's state, when ``phase`` is given.
        dtype: "float32", or "float64" for gradient checks.
        lowered: Whether backends may lower operations to Steps of their own; off, every layer runs
            its portable code. None asks the setting ``optimize``.
        seed: Key of all its random numbers; None asks the configuration.
        base_dir: Folder where named files are looked for besides the working directory; by
            default that of ``source``.
        keep: The names of the blobs to keep besides inputs and outputs, or "outputs" for those
            alone; None keeps all. In phase TEST the net then only runs forward: other blobs share
            buffers, some are not computed at all, or only the pixels of them that are read, and
            reading one is an error. In phase TRAIN all
            data is kept, and other blobs' gradients share buffers.
        lenient: Whether fields that are not known are left out with a warning, not refused.
        rank: Which of ``ranks`` data-parallel workers this is.
        ranks: How many of them there are.
        storage: How a GPU keeps its blobs and weights: "float" as they are computed, or "half" or
            "bfloat16" in 16 bits, in phase TEST alone; None asks the configuration.

    Attributes:
        structure: Its parts by number, and how they hang together.
        device: Where it runs; ``to`` moves it.
        turn: What a thread holds while it works on the net: ``with net.turn:`` keeps others out
            for more than one call.

    Raises:
        PrototxtError: The file cannot be read.
        NetError: Layers do not fit together.
        ShapeError: A layer cannot take the shape of a bottom.
        DeviceError: The device is not there.

    Nets may run in different threads at the same time, one net in one thread at a time: what works
    on a net's blobs raises NetError where another thread does so already.
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
        lowered: bool | None = None,
        seed: int | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        keep: Keep = None,
        lenient: bool = False,
        rank: int = 0,
        ranks: int = 1,
        storage: Stored | None = None,
    ) -> None:
        if dtype not in {"float32", "float64"}:
            message = f"a net computes in float32 or float64, not {dtype!r}"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, field="dtype", got=dtype)
        read = read_source(source, lenient)
        param = read.message
        if phase is not None:
            param.state.phase = phase_number(phase)
            param.state.level = level
            param.state.stage.extend(stages)
        self.device, self.device_from = choose_device(device)
        self.seed = choose_seed(seed)
        self.dtype = dtype
        self._context = LayerContext(
            device=self.device,
            dtype=dtype,
            seed=self.seed,
            base_dir=folder(base_dir, read.source),
            rank=rank,
            ranks=ranks,
            storage=choose_storage(storage, self.device, dtype),
            python_layers=settings.get("python_layers"),
            pass_counter=PassCounter(),
        )
        origins = [read.origin(i) for i in range(len(param.layer))]
        lowered = settings.get("optimize") if lowered is None else lowered
        keep = names_in(keep)
        moves = lowered and Phase.Name(param.state.phase) == "TEST"
        with self.device.backend.enter():
            self.structure = assemble(param, self._context, origins, keep if moves else None)
        phase, layers = self.structure.phase, self.structure.layers
        need_inference(self._context.storage, phase)
        self._draws = phase == "TRAIN" or any(layer.random_in_test for layer in layers)
        self._source = param
        self._declared = {name: self.blobs[name].shape for name in self.inputs}
        self._kept, self.turn = kept_names(keep, self.blob_names), Turn(self.name)
        self._passes = Passes(
            self.structure, self._kept, lowered=lowered, storage=self._context.storage
        )
        self._launched = Launched(self)
        self._labels = LabelCheck(self.structure)
        self._passes.debug_info = param.debug_info
        self._remembering = [layer for layer in self.layers if layer.has_counters]
        for one in several(weights):
            self.load(one)

    # -- parameters ----------------------------------------------------------------------------

    def clear_param_diffs(self) -> None:
        """Set the gradients of all learnable parameters to zero."""
        with self.turn:
            self._passes.gradients_whole = False
            for blob in self.learnable_params:
                blob.diff_memory.clear()
            self._passes.gradients_whole = True

    def need_whole_gradients(self) -> None:
        """Refuse gradients of a backward pass that was not done to its end.

        Raises:
            NetError: They were not cleared since.
        """
        if not self._passes.gradients_whole:
            message = (
                "the last backward pass was not done to its end, so the gradients of the "
                "parameters are not whole; call clear_param_diffs(), forward() and backward()"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE)

    def update(self) -> None:
        """Subtract its gradient from every learnable parameter.

        Raises:
            NetError: The last backward pass was not done to its end.
        """
        with self.at_work("update"):
            self.need_whole_gradients()
            with Uninterrupted():
                for blob in self.learnable_params:
                    place = f"update of parameter {blob.name!r}"
                    with memory_errors_at(place, self.device.backend.explained):
                        blob.update()

    def share_weights(self) -> None:
        """Let parameters of one name hold one memory again."""
        self.structure.share_weights()

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
        with self.turn, Uninterrupted():
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
        with self.turn:
            return load_into(self.structure, source, on_mismatch)

    def save(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write the parameters, atomically.

        Args:
            path: The ending says the format: ``.npz``, ``.safetensors`` or ``.h5`` (Caffe's HDF5);
                any other gives a caffemodel. ``load`` reads them all.
            write_diff: Whether gradients are written, too; in a caffemodel or HDF5 alone.

        Raises:
            WeightsError: The format holds no gradients, or h5py is not installed.
            OSError: The file cannot be written; an old one is kept.
        """
        with self.turn:
            save(self.structure, Path(path), write_diff)

    def save_hdf5(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write the parameters to an HDF5 file, atomically; shared ones once."""
        with self.turn:
            write_hdf5_weights(self.structure, Path(path), write_diff)

    # -- devices and inputs --------------------------------------------------------------------

    def to(self, device: str | Device) -> Self:
        """Move to another device; blobs follow when they are used."""
        with self.turn:
            before = self.device
            try:
                self._move(Device(device))
            except BaseException:
                self._move(before)
                raise
        return self

    def _move(self, device: Device) -> None:
        self.device = self._context.device = device
        for blob in (*self.structure.blob_list, *self.structure.params_list):
            blob.to(device)
        for layer in self.layers:
            layer.to(device)
        self._passes.plan_anew()

    def clone(self, device: str | Device | None = None, rank: int | None = None) -> Net:
        """Return another net of the same message, parameters and seed, here or elsewhere.

        Args:
            device: Where; None for where this one is.
            rank: Which of its data-parallel workers it is; None for the same.
        """
        copy = Net(
            self._source,
            device=self.device if device is None else device,
            dtype=self.dtype,
            lowered=self.plan.lowered,
            seed=self.seed,
            base_dir=self.base_dir,
            keep=self._kept,
            rank=self._context.rank if rank is None else rank,
            ranks=self._context.ranks,
        )
        for mine, theirs in zip(self.learnable_params, copy.learnable_params, strict=True):
            theirs.copy_from(mine)
        copy.passes = self.passes
        return copy

    def predict(
        self,
        inputs: dict[str, Any] | Any,
        batch: int | None = None,
        whole: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Run the net on arrays; any batch size.

        Args:
            inputs: An array for each net input, or one array where there is one input; on the host,
                or on the net's device, which they do not leave then.
            batch: Run at most this many items at a time; None runs all at once. The items are on
                the first axis and do not depend on each other.
            whole: Names of the inputs that go into every batch as they are. None: those that have
                fewer items than others, and the shape that the net declares for them.

        Returns:
            A copy of every output, as numpy arrays. Of several batches those outputs are joined
            whose first axis grows with the number of items; others are the same in every batch.

        Raises:
            NetError: Inputs are missing or unknown; it cannot be told which inputs or outputs
                have a batch axis, or an output that has none changes from batch to batch.
            DeviceError: An array is on another device.
        """
        with self.turn:
            return predict(self, inputs, batch, whole, self._declared)

    def __call__(self, inputs: Any = None, /, **named: Any) -> Any:
        """Run the net forward on arrays: ``net(x)``, ``net(data=x, label=y)``, ``net({"x-1": x})``.

        Args:
            inputs: One array where there is one input, or a dict of arrays by the inputs' names.
            named: Or the arrays by name.

        Returns:
            A copy of the output as a numpy array, or, where there are several, a dict of them.

        Raises:
            NetError: Inputs are missing or unknown.
        """
        if inputs is not None and named:
            message = "give all inputs in one dict or all by name, not some of each"
            raise NetError(message, code=ErrorCode.CONFLICT)
        outputs = self.predict(named if inputs is None else inputs)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def set_input(self, name: str, array: Any) -> None:
        """Reshape an input blob to an array, on the host or the net's device, and fill it.

        Raises:
            ShapeError: The array has an axis of a size that cannot be, or holds no numbers.
            DeviceError: It is on another device.
        """
        blob = self.blob_by_name(name)
        if not hasattr(array, "shape"):
            message = f"input {name!r} must be an array, it is {type(array).__name__}"
            raise ShapeError(message, code=ErrorCode.INVALID, blob=name)
        if getattr(array.dtype, "kind", "f") in "SUmM":
            message = f"input {name!r} must be an array of numbers, it holds {array.dtype}"
            raise ShapeError(
                message, code=ErrorCode.DTYPE_MISMATCH, blob=name, got=str(array.dtype)
            )
        if not is_on(array, self.device):
            array = host_array(array, f"input {name!r}", self.device)
        blob.reshape(array.shape)
        blob.data = array

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

    def _repr_html_(self) -> str:
        return html_of(self)
