"""Net: a graph of layers that computes a loss and its gradients.

Source: Caffe, ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

from demitasse.backends.storage import Stored
from demitasse.blob import Blob
from demitasse.blob.blob import host_array, is_on
from demitasse.core import guesses
from demitasse.core.config import settings
from demitasse.core.deprecated import deprecated_attribute, renamed_arguments
from demitasse.core.device import Device, choose_device
from demitasse.core.guesses import attribute_error
from demitasse.core.out_of_memory import memory_errors_at
from demitasse.core.text import html_of
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, Phase
from demitasse.layers import Layer, LayerContext
from demitasse.layers.context import PassCounter
from demitasse.net.build import (
    as_sequence,
    assemble,
    choose_storage,
    order_arguments,
    phase_number,
    read_source,
    resolve_dtype,
)
from demitasse.net.execution import Callback, ExclusiveLock, Execution
from demitasse.net.memory_usage import MemoryUse, bytes_taken, memory_held
from demitasse.net.predict import predict
from demitasse.plan import Plan
from demitasse.plan.liveness import Keep, kept_names, names_in

if TYPE_CHECKING:
    from demitasse.io.weights.load import LoadReport, OnMismatch
    from demitasse.net.function import NetFunction
    from demitasse.net.summary import Table

HOOKS = ("before_forward", "after_forward", "before_backward", "after_backward")  # times of hooks
Where = int | str | None  # a layer by its index or name; None for the default


class Net:
    """Layers, the blobs between them, and the passes over them.

    Args:
        source: A prototxt file, its text, or a message.
        phase: "TRAIN" or "TEST"; None takes the file's state.
        weights: Files or messages to load parameters from, by layer name; one or several. They may
            also be second, before the phase, as in pycaffe.
        device: The device; None asks the configuration.
        level: Level of the net's state, when ``phase`` is given.
        stages: Stages added to the file's state, when ``phase`` is given.
        dtype: "float32", or "float64" for gradient checks. "bfloat16" and "float16" are float32
            with ``storage`` "bfloat16" and "half".
        optimize: Whether backends may replace a layer's portable code by Steps of their own. None
            asks the setting ``optimize``.
        seed: Key of all random numbers of the net; None asks the configuration.
        base_dir: Folder for relative file names, besides the working directory; by default that of
            ``source``.
        keep_blobs: Names of the blobs to keep besides inputs and outputs, or "outputs" for inputs
            and outputs alone; None keeps all. In phase TEST the net then only runs forward: other
            blobs share buffers, are computed in part or not at all, and cannot be read. In phase
            TRAIN all data is kept, and the gradients of other blobs share buffers.
        ignore_unknown_fields: Skip unknown fields with a warning instead of raising an error.
        rank: Index of this data-parallel worker, below ``world_size``.
        world_size: Number of data-parallel workers.
        storage: Storage of blobs and weights on a GPU: "float", or "half" or "bfloat16" with 16
            bits; None asks the configuration. On ``cpu``, in phase TEST, "bfloat16" multiplies in
            bfloat16, and "half" is for weights of InnerProduct; blobs and sums are float32.
        force_backward: Whether ``backward`` computes the gradients of all blobs, also of inputs,
            and from outputs without a loss; None takes the file's field.
        verify: Whether to compare every Step of a pass with portable code on the same inputs, for
            debugging; a number is the tolerance, relative to the largest value of a result. The
            first result that differs raises NetError with the code ``FAILED``.

    Attributes:
        structure: The layers, blobs and parameters by number, and their connections.
        execution: Runs the passes.
        device_from: Origin of the choice of the device.
        seed: Key of all random numbers.
        dtype: Element type of all blobs.

    Raises:
        PrototxtError: The file cannot be read.
        NetError: Layers do not fit together.
        ShapeError: A layer cannot take the shape of a bottom.
        DeviceError: The device is not there.

    Different nets may run in different threads at the same time. One net runs in one thread at a
    time: a call from a second thread raises NetError.
    """

    @renamed_arguments(
        lenient="ignore_unknown_fields", ranks="world_size", lowered="optimize", keep="keep_blobs"
    )
    def __init__(
        self,
        source: str | os.PathLike[str] | NetParameter,
        phase: str | int | os.PathLike[str] | None = None,
        weights: Any = None,
        *,
        device: str | Device | None = None,
        level: int = 0,
        stages: Sequence[str] = (),
        dtype: str = "float32",
        optimize: bool | None = None,
        seed: int | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        keep_blobs: Keep = None,
        ignore_unknown_fields: bool = False,
        rank: int = 0,
        world_size: int = 1,
        storage: Stored | None = None,
        force_backward: bool | None = None,
        verify: bool | float = False,
    ) -> None:
        phase, weights = order_arguments(phase, weights)
        dtype, storage = resolve_dtype(dtype, storage)
        read = read_source(source, ignore_unknown_fields)
        param = read.message
        if phase is not None:
            param.state.phase = phase_number(phase)
            param.state.level = level
            if isinstance(stages, str):
                text = f"got stages {stages!r}, expected a list of names; give [{stages!r}]"
                raise ConfigError(text, code=ErrorCode.INVALID, field="stages", got=stages)
            param.state.stage.extend(stages)
        if force_backward is not None:
            param.force_backward = force_backward
        chosen, self.device_from = choose_device(device)
        seed = settings.get("seed") if seed is None else seed
        seed = int.from_bytes(os.urandom(4), "little") >> 1 if seed < 0 else int(seed)
        self.seed = seed % (1 << 64)  # the key of random numbers has so many bits
        self.dtype = dtype
        if base_dir is None and read.source:
            base_dir = Path(read.source).parent
        named_phase = Phase.Name(param.state.phase)
        self._context = LayerContext(
            device=chosen,
            dtype=dtype,
            seed=self.seed,
            base_dir=None if base_dir is None else Path(base_dir),
            rank=rank,
            world_size=world_size,
            storage=choose_storage(storage, chosen, dtype, named_phase),
            python_layers=settings.get("python_layers"),
            pass_counter=PassCounter(),
        )
        origins = [read.origin(i) for i in range(len(param.layer))]
        optimize = settings.get("optimize") if optimize is None else optimize
        keep_blobs = names_in(keep_blobs)
        moves = optimize and named_phase == "TEST"
        with chosen.backend.enter():
            self.structure = assemble(param, self._context, origins, keep_blobs if moves else None)
        self._source = param
        self._declared = {name: self.blobs[name].shape for name in self.inputs}
        self._kept = kept_names(keep_blobs, self.blob_names)
        self.execution = Execution(self.structure, self._context, self._kept, optimize=optimize)
        self.debug_info = param.debug_info
        self.verify = verify
        for one in as_sequence(weights):
            report = self.load(one)
            if report.missing and report.ignored and not report.loaded:
                what = f"no layer of {getattr(one, 'name', one)} is in net {self.name!r}"
                message = f"{what}, whose parameters keep initial values; check the weights"
                warnings.warn(message, RuntimeWarning, stacklevel=3)

    # -- parts ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name in the message."""
        return self.structure.name

    @property
    def phase(self) -> str:
        """Phase: "TRAIN" or "TEST"."""
        return self.structure.phase

    @property
    def storage(self) -> Stored:
        """Storage of blobs and weights on the device: "float", or 16 bits."""
        return self.device.backend.supported_storage(self._context.storage, self.phase)

    @property
    def device(self) -> Device:
        """The device; ``to`` moves the net to another."""
        return self._context.device

    @property
    def base_dir(self) -> Path | None:
        """Folder of the prototxt, for relative file names."""
        return self._context.base_dir

    @property
    def layers(self) -> Sequence[Layer]:
        """The layers, Split layers included, in order."""
        return self.structure.layers

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers, in order."""
        return [layer.name for layer in self.layers]

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """The blobs by name, in order of appearance."""
        return self.structure.blobs

    @property
    def blob_names(self) -> list[str]:
        """Names of the blobs, in order of appearance."""
        return list(self.structure.graph.blobs)

    @property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """The parameters of each layer that has parameters, by its name."""
        return self.structure.params

    @property
    def learnable_params(self) -> Sequence[Blob]:
        """The parameters that own their memory."""
        return self.structure.learnable_params

    @property
    def inputs(self) -> list[str]:
        """Names of the input blobs, which the caller fills."""
        return self.structure.inputs

    @property
    def input_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the inputs as the net declares them, by name."""
        return dict(self._declared)

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs that no layer reads, in alphabetical order."""
        return self.structure.outputs

    def has_blob(self, name: str) -> bool:
        """Return whether there is a blob of this name."""
        return name in self.blobs

    def blob_by_name(self, name: str) -> Blob:
        """Return the blob of this name.

        Raises:
            NetError: There is none.
        """
        if not self.has_blob(name):
            message = f"no blob {name!r} in net {self.name!r}; it has {', '.join(self.blob_names)}"
            raise NetError(message, code=ErrorCode.UNKNOWN, blob=name)
        return self.blobs[name]

    def has_layer(self, name: str) -> bool:
        """Return whether there is a layer of this name."""
        return name in self.structure.layer_numbers

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
            if layer not in self.structure.layer_numbers:
                message = (
                    f"no layer {layer!r} in net {self.name!r}; it has {', '.join(self.layer_names)}"
                )
                raise NetError(message, code=ErrorCode.UNKNOWN, layer=layer)
            return self.structure.layer_numbers[layer]
        number = layer + len(self.layers) if layer < 0 else layer
        if not 0 <= number < len(self.layers):
            message = f"no layer {layer} in net {self.name!r} of {len(self.layers)} layers"
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, layer=layer)
        return number

    def to_proto(self, write_diff: bool = False) -> NetParameter:
        """Return the message of the net as built, with its parameters and, if asked, gradients."""
        proto = NetParameter(name=self.name, layer=self.structure.layer_messages())
        with self._steady_parameters():
            for layer, message in zip(self.layers, proto.layer, strict=True):
                message.blobs.extend(blob.to_proto(write_diff) for blob in layer.blobs)
        return proto

    def _steady_parameters(self) -> AbstractContextManager[object]:
        """Return the lock of a net whose parameters a solver may change; else a null context."""
        return self.lock if self.phase == "TRAIN" else nullcontext()

    def source_message(self) -> NetParameter:
        """Return a copy of the message that the net was made from, in its current form."""
        return deepcopy(self._source)

    def as_function(self, device: str | Device | None = None) -> NetFunction:
        """Return the net as a pure function ``(params, inputs) -> outputs`` of arrays.

        ``jax.jit``, ``jax.grad``, ``jax.vmap`` and ``torch.func`` take the function::

            function = net.as_function("jax:cpu")
            outputs = jax.jit(function)(function.params, {"data": x})

        Args:
            device: Device of the arrays; None for the net's.

        Raises:
            DeviceError: The device is not there.
        """
        from demitasse.net.function import NetFunction

        return NetFunction(self, device)

    def as_torch_module(self, device: str | Device = "torch:cpu") -> Any:
        """Return the net as a ``torch.nn.Module`` with copies of the parameters and of the state.

        ``module(x)`` returns the only output, or a dict of outputs; PyTorch differentiates it. In
        phase TRAIN a call updates the running averages, and Dropout draws new numbers.

        Args:
            device: A device of PyTorch.

        Raises:
            DeviceError: PyTorch or the device is not there.
        """
        from demitasse.backends.torch import module_of

        return module_of(self.as_function(device))

    # -- passes --------------------------------------------------------------------------------

    @property
    def passes(self) -> int:
        """Number of forward passes in phase TRAIN so far.

        Random numbers are keyed by the seed and this number. It may be set, to draw the same
        numbers again.
        """
        return self._context.pass_counter.passes

    @passes.setter
    def passes(self, value: int) -> None:
        self._context.pass_counter.passes = value

    @property
    def plan(self) -> Plan:
        """The layers as prepared for the device."""
        return self.execution.plan

    @property
    def lock(self) -> ExclusiveLock:
        """Lock for more than one call: ``with net.lock:`` refuses calls of other threads."""
        return self.execution.lock

    @property
    def debug_info(self) -> bool:
        """True if passes log mean absolute values of all blobs; may be set."""
        return self.execution.passes.debug_info

    @debug_info.setter
    def debug_info(self, value: bool) -> None:
        self.execution.passes.debug_info = value

    @property
    def verify(self) -> bool | float:
        """Tolerance of the verification of every Step; False without verification; may be set."""
        return self._verify

    @verify.setter
    def verify(self, value: bool | float) -> None:
        self._verify = value
        if value is False:
            self.plan.observer = None
            return
        from demitasse.net.verify import TOLERANCE, StepVerifier

        tolerance = TOLERANCE[self.storage] if value is True else value
        parts = self.structure, self._context, lambda: self.plan
        self.plan.observer = StepVerifier(*parts, tolerance)

    @property
    def before_forward(self) -> list[Callback]:
        """Callbacks before each layer's forward; each gets the layer's index."""
        return self.execution.passes.before_forward

    @property
    def after_forward(self) -> list[Callback]:
        """Callbacks after each layer's forward."""
        return self.execution.passes.after_forward

    @property
    def before_backward(self) -> list[Callback]:
        """Callbacks before each layer's backward."""
        return self.execution.passes.before_backward

    @property
    def after_backward(self) -> list[Callback]:
        """Callbacks after each layer's backward."""
        return self.execution.passes.after_backward

    @overload
    def forward(self, start: Where = None, end: Where = None) -> float: ...

    @overload
    def forward(self, start: Any = None, end: Where = None, **inputs: Any) -> Any: ...

    def forward(self, start: Any = None, end: Where = None, **inputs: Any) -> Any:
        """Run layers from ``start`` to ``end``, both included, by name or index; by default all.

        ``forward(x)``, ``forward({"data": x})`` and ``forward(data=x)`` are ``net(x)``.

        Returns:
            The sum over loss tops of their value times their weight; with arrays, the outputs.

        Raises:
            DataError: A label is neither a class of the scores nor ignored.
        """
        if inputs or not (start is None or isinstance(start, (int, str))):
            return self(start, **inputs)
        first = 0 if start is None else self.layer_number(start)
        last = len(self.structure.layers) - 1 if end is None else self.layer_number(end)
        return self.execution.forward(first, last)

    def backward(self, start: Where = None, end: Where = None) -> None:
        """Run layers from ``start`` down to ``end``, both included; by default all.

        Raises:
            NetError: The net is in phase TEST and was made with ``keep_blobs``; or the last
                forward pass was interrupted.
        """
        first = len(self.structure.layers) - 1 if start is None else self.layer_number(start)
        last = 0 if end is None else self.layer_number(end)
        reason = self._zero_gradients() if start is None else ""
        self.execution.backward(first, last)
        if reason:
            warnings.warn(reason, stacklevel=2)

    def _zero_gradients(self) -> str:
        """Return the reason why a backward pass leaves all gradients 0; empty for none."""
        outputs = [self.blobs[name] for name in self.outputs]
        has_gradients = any(self.structure.needs.layers)
        if has_gradients and not all(blob.diff_memory.cleared for blob in outputs):
            return ""  # the usual case: a loss's diff is its weight
        if any(self.structure.blob_loss_weights):
            return ""
        where = f"net.blobs[{self.outputs[0]!r}].diff" if outputs else "the diff of a blob"
        if not has_gradients:
            return (
                f"net {self.name!r} has no loss, so backward() computed no gradients: add a loss "
                f"layer, or make the net with force_backward=True and set {where} before backward()"
            )
        return (
            f"net {self.name!r} has no loss, and the gradients of its outputs were 0, so all "
            f"gradients are 0: set {where} before backward()"
        )

    def forward_backward(self) -> float:
        """Run forward and backward; return the loss.

        A device that queues its work gets all of the work before the wait for the loss.

        Raises:
            DataError: A label is neither a class of the scores nor ignored.
        """
        return self.execution.forward_backward()

    def reshape(
        self, shapes: Mapping[str, Sequence[int]] | None = None, /, **named: Sequence[int]
    ) -> None:
        """Compute the shapes of all tops, and no values.

        Args:
            shapes: New shapes of inputs by name.
            named: The same as keywords: ``net.reshape(data=(8, 3, 224, 224))``.

        Raises:
            NetError: There is no such input.
        """
        with self.exclusive("reshape"):
            for name, shape in {**(shapes or {}), **named}.items():
                self.blob_by_name(name).reshape(*shape)
            self.plan.reshape()

    def add_hook(
        self, layer: int | str, function: Callable[[Layer], object], when: str = "after_forward"
    ) -> Callable[[], None]:
        """Call a function with a layer whenever the layer runs; return a function that ends it.

        Args:
            layer: The layer, by name or index.
            function: The function.
            when: "before_forward", "after_forward", "before_backward" or "after_backward".

        Raises:
            NetError: There is no such layer.
            ConfigError: ``when`` is unknown.
        """
        if when not in HOOKS:
            message = f"got when={when!r}, expected one of {', '.join(HOOKS)}"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, field="when", got=when)
        wanted = self.layer_number(layer)
        callbacks: list[Callback] = getattr(self, when)

        def call(number: int) -> None:
            if number == wanted:
                function(self.layers[number])

        def remove() -> None:
            if call in callbacks:
                callbacks.remove(call)

        callbacks.append(call)
        return remove

    def exclusive(self, doing: str) -> AbstractContextManager[None]:
        """Return a context for work on the net's blobs: the lock, and the device made current.

        ``doing`` names the work in errors.

        Raises:
            NetError: Another thread uses the net.
            OutOfMemoryError: An allocation failed; the error has the batch size that would fit.
        """
        return self.execution.exclusive(doing)

    def savepoint(self) -> Callable[[], None]:
        """Return a function that rolls back all forward passes from now on.

        Restored are positions in the data, the counts that random numbers are keyed by, running
        averages and hidden states. Other blobs stay as they are.
        """
        return self.execution.savepoint()

    def synchronize(self) -> None:
        """Wait until the device has done all queued work."""
        self.device.backend.synchronize()

    # -- parameters ----------------------------------------------------------------------------

    def clear_param_diffs(self) -> None:
        """Set the gradients of all learnable parameters to zero."""
        with self.lock:
            self.execution.passes.gradients_valid = False
            for blob in self.learnable_params:
                blob.diff_memory.clear()
            self.execution.passes.gradients_valid = True

    def check_gradients(self) -> None:
        """Refuse gradients of an interrupted backward pass.

        Raises:
            NetError: A backward pass was interrupted since the gradients were cleared.
        """
        if not self.execution.passes.gradients_valid:
            message = (
                "the last backward pass was interrupted, so the gradients of the parameters are "
                "incomplete; call clear_param_diffs(), forward() and backward()"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE)

    def update(self) -> None:
        """Subtract its gradient from every learnable parameter.

        Raises:
            NetError: The last backward pass was interrupted.
        """
        with self.exclusive("update"):
            self.check_gradients()
            with Uninterrupted():
                for blob in self.learnable_params:
                    place = f"update of parameter {blob.name!r}"
                    with memory_errors_at(place, self.device.backend.explained):
                        blob.update()

    @property
    def parameter_count(self) -> int:
        """Number of values of all learnable parameters; shared ones count once."""
        return sum(blob.count for blob in self.learnable_params)

    def freeze(self, *patterns: str) -> list[str]:
        """Exclude the parameters of layers from updates: set their ``lr_mult`` to 0.

        Momentum does not move them, either. A resume does not freeze layers, and warns where they
        were frozen: freeze them before. ``net.params[name][0].lr_mult = 1`` lets a parameter learn
        again.

        Args:
            patterns: Names of layers, with the wildcards of the shell: "conv*".

        Returns:
            The names of the frozen layers.

        Raises:
            NetError: A pattern matches no layer with parameters.
        """
        frozen: list[str] = []
        for pattern in patterns:
            found = [name for name in self.params if fnmatchcase(name, pattern)]
            if not found:
                message = (
                    f"no layer with parameters matches {pattern!r} in net {self.name!r}; it has "
                    f"{', '.join(self.params)}"
                )
                raise NetError(message, code=ErrorCode.UNKNOWN, layer=pattern)
            frozen += [name for name in found if name not in frozen]
        for name in frozen:
            for blob in self.params[name]:
                blob.lr_mult = 0
        return frozen

    def share_weights(self) -> None:
        """Make parameters with the same name share one memory again."""
        self.structure.share_weights()

    def share_trained_layers_with(self, other: Net) -> None:
        """Share the parameter data of the layers of the same names in another net.

        Raises:
            NetError: A layer has another number of parameters.
            ShapeError: A parameter has another shape.
        """
        from demitasse.io.weights.load import matched

        pairs: list[tuple[Blob, Blob]] = []
        for layer in other.layers:
            if layer.blobs and self.has_layer(layer.name):
                mine = self.layer_by_name(layer.name)
                pairs += matched(layer.name, mine.blobs, layer.blobs)
        with self.lock, Uninterrupted():
            for blob, source in pairs:
                blob.share_data(source)

    def load(
        self, source: str | os.PathLike[str] | NetParameter, on_mismatch: OnMismatch = "raise"
    ) -> LoadReport:
        """Load parameters from a file of weights or a message, by layer name.

        The report lists the layers that were loaded, ignored (not in this net), missing (not in the
        source) and mismatched: with parameters of other shapes, or of another number. Such a layer
        makes ``on_mismatch="raise"`` refuse the source, and nothing changes; "skip" leaves it out.
        """
        from demitasse.io.weights.load import load_into

        with self.lock:
            return load_into(self.structure, source, on_mismatch)

    def save(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write the parameters, atomically.

        Args:
            path: The file. Its ending selects the format: ``.npz``, ``.safetensors`` or ``.h5``
                (Caffe's HDF5); any other gives a caffemodel. ``load`` reads them all.
            write_diff: Whether to write gradients; in a caffemodel or HDF5 alone.

        Raises:
            WeightsError: The format has no gradients, or h5py is not installed; or the format
                stores parameters by the names of their layers, and two are equal.
            OSError: The file cannot be written; an old file is kept.
        """
        from demitasse.io.weights.save import save

        with self.lock:
            save(self.structure, Path(path), write_diff)

    def save_hdf5(self, path: str | os.PathLike[str], write_diff: bool = False) -> None:
        """Write the parameters to an HDF5 file, atomically; shared ones once."""
        from demitasse.io.weights.hdf5 import write_hdf5_weights

        with self.lock:
            write_hdf5_weights(self.structure, Path(path), write_diff)

    # -- devices and memory --------------------------------------------------------------------

    def to(self, device: str | Device) -> Self:
        """Move to another device; blobs are copied when they are next used."""
        with self.lock:
            before = self.device
            try:
                self._move(Device(device))
            except BaseException:
                self._move(before)
                raise
        return self

    def _move(self, device: Device) -> None:
        self._context.device = device
        for blob in (*self.structure.blob_list, *self.structure.params_list):
            blob.to(device)
        for layer in self.layers:
            layer.to(device)
        self.execution.passes.reset_plan()
        if self._verify is True:
            self.verify = True  # with the tolerance of the storage there

    def clone(self, device: str | Device | None = None, rank: int | None = None) -> Net:
        """Return another net of the same message, parameters and seed.

        Args:
            device: Device of the clone; None for this net's.
            rank: Index of the clone as a data-parallel worker; None for this net's.
        """
        place = self.device if device is None else Device(device)
        copy = Net(
            self._source, device=place, dtype=self.dtype,
            storage=place.backend.supported_storage(self._context.storage, self.phase),
            optimize=self.plan.optimize, seed=self.seed, base_dir=self.base_dir,
            keep_blobs=self._kept, rank=self._context.rank if rank is None else rank,
            world_size=self._context.world_size, verify=self.verify,
        )  # fmt: skip
        with self._steady_parameters():
            for mine, theirs in zip(self.learnable_params, copy.learnable_params, strict=True):
                theirs.copy_from(mine)
        copy.passes = self.passes
        return copy

    @property
    def memory_use(self) -> MemoryUse:
        """Bytes of the device's memory in use by the net, by part."""
        return memory_held(self)

    @property
    def blob_bytes(self) -> int:
        """Bytes in use by the data of the blobs, on host and device together."""
        return bytes_taken(blob.data_memory for blob in self.structure.blob_list)

    @property
    def gradient_bytes(self) -> int:
        """Bytes in use by the gradients of the blobs, on host and device together."""
        return bytes_taken(blob.diff_memory for blob in self.structure.blob_list)

    # -- inputs --------------------------------------------------------------------------------

    @renamed_arguments(batch="batch_size", whole="unbatched")
    def predict(
        self,
        inputs: dict[str, Any] | Any,
        batch_size: int | None = None,
        unbatched: Collection[str] | None = None,
        outputs: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Run the net on arrays; any batch size.

        Args:
            inputs: An array for each net input, or one array for a net with one input. Arrays are
                on the host, or on the net's device, where they stay. If all arrays have one axis
                less than the net declares, they are one item without a batch axis.
            batch_size: Largest number of items of one pass; None runs all at once. Items are on the
                first axis and independent of each other.
            unbatched: Names of the inputs that are not split into batches. None: those with fewer
                items than others and the shape that the net declares.
            outputs: Names of the blobs to return; None for the net's outputs.

        Returns:
            A copy of every output, as numpy arrays. Outputs whose first axis grows with the number
            of items are concatenated over the batches; others are the same in every batch. Outputs
            of one item without a batch axis have none.

        Raises:
            NetError: Inputs are missing or unknown; which inputs or outputs have a batch axis is
                ambiguous; or an output without a batch axis changes from batch to batch.
            DeviceError: An array is on another device.
        """
        with self.lock:
            return predict(self, inputs, batch_size, unbatched, self._declared, outputs)

    def __call__(self, inputs: Any = None, /, **named: Any) -> Any:
        """Run the net forward on arrays: ``net(x)``, ``net(data=x, label=y)``, ``net({"x-1": x})``.

        Returns:
            A copy of the output as a numpy array, or a dict of several outputs.

        Raises:
            NetError: Inputs are missing or unknown.
        """
        if inputs is not None and named:
            message = "got inputs both in a dict and by name; give all inputs in one of the ways"
            raise NetError(message, code=ErrorCode.CONFLICT)
        outputs = self.predict(named if inputs is None else inputs)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def set_input(self, name: str, array: Any) -> None:
        """Reshape an input blob to an array, on the host or the net's device, and copy the values.

        Raises:
            ShapeError: The array has an axis of an invalid size, or no numbers.
            DeviceError: The array is on another device.
        """
        blob = self.blob_by_name(name)
        if not hasattr(array, "shape"):
            message = f"input {name!r} must be an array, got {type(array).__name__}"
            raise ShapeError(message, code=ErrorCode.INVALID, blob=name)
        if not is_on(array, self.device):
            array = host_array(array, f"input {name!r}", self.device)
        kind = getattr(array.dtype, "kind", "f")
        if kind == "O" and array.shape:  # not None or a generator
            with suppress(TypeError, ValueError):
                array, kind = array.astype(float), "f"
        if kind in "OSUmMc":
            message = f"input {name!r} must be an array of real numbers, got dtype {array.dtype}"
            got = str(array.dtype)
            raise ShapeError(message, code=ErrorCode.DTYPE_MISMATCH, blob=name, got=got)
        blob.reshape(array.shape)
        blob.data = array

    def summary(self) -> Table:
        """Return a table of layers: shapes, parameters, work and bytes of a forward pass."""
        from demitasse.net.summary import summary

        return summary(self)

    def __deepcopy__(self, memo: object) -> Net:
        return self.clone()

    def __copy__(self) -> NoReturn:
        message = "a net cannot be copied with copy.copy; use net.clone()"
        raise TypeError(message)

    def __reduce__(self) -> NoReturn:
        message = (
            "a net cannot be pickled; write net.save(path) and make demitasse.Net(prototxt, path) "
            "in the other process, or use net.clone() in this one"
        )
        raise TypeError(message)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise attribute_error(type(self), name, guesses.NET)

    def close(self) -> None:
        """Stop the threads and close the files of the layers."""
        for layer in self.layers:
            layer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Net({self.name!r}, {self.phase}, {len(self.layers)} layers on {self.device})"

    _repr_html_ = html_of
    turn = deprecated_attribute("Net", "turn", "lock")
    at_work = deprecated_attribute("Net", "at_work", "exclusive")
    remember = deprecated_attribute("Net", "remember", "savepoint")
    need_whole_gradients = deprecated_attribute("Net", "need_whole_gradients", "check_gradients")
