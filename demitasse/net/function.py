"""Net functions: a net as a pure function of its parameters and inputs.

The layers run on a functional backend, whose memories replace their arrays. Nothing is left in the
net after a call, so ``jax.jit``, ``jax.grad``, ``jax.vmap`` and ``torch.func`` take the function.
The derivative is the layers' own backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.blob.blob import host_array
from demitasse.core.device import Device
from demitasse.errors import DemitasseError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import LayerParameter, NetParameter
from demitasse.layers import Layer
from demitasse.plan import PlannedLayer

if TYPE_CHECKING:
    from demitasse.net.net import Net

Tree = Mapping[str, Sequence[Array]]  # arrays of layers: a tuple for each layer's name


class NetFunction:
    """A pure function ``(params, inputs) -> outputs`` from the layers of a net.

    Layers without bottoms and parameters, as data layers, become inputs. The phase is that of the
    net. Dropout draws the numbers of the pass ``key``, as the net does with ``net.passes = key``.

    Args:
        net: The net; the function does not change it.
        device: Device of the arrays; None for the net's.

    Attributes:
        device: Device of the arrays.
        phase: "TRAIN" or "TEST".
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        loss_weights: Weights of the outputs that are losses, by name.

    Raises:
        DeviceError: The device is not there.
        NetError: Several layers with parameters have one name.
    """

    def __init__(self, net: Net, device: str | Device | None = None) -> None:
        self._origin, self.phase = net, net.phase
        self.device = net.device if device is None else Device(device)
        message = net.source_message()
        _declare_inputs(message, net)
        self._net = copy = type(net)(
            message, device=self.device.functional(), dtype=net.dtype, optimize=net.plan.optimize,
            seed=net.seed, base_dir=net.base_dir, storage="float", force_backward=True,
        )  # fmt: skip
        self._backend = copy.device.backend
        structure = copy.structure
        self._layers = copy.plan.entries
        self.inputs, self.outputs = copy.inputs, copy.outputs
        weights = zip(structure.graph.blobs, structure.blob_loss_weights, strict=True)
        self.loss_weights = {name: w for name, w in weights if w and name in self.outputs}
        state = {layer.name: tuple(layer.all_state_blobs()) for layer in copy.layers}
        carried = {id(blob) for blobs in state.values() for blob in blobs}
        owned = {id(blob) for blob in copy.learnable_params} - carried
        with_blobs = [layer.name for layer in copy.layers if layer.blobs]
        for name in with_blobs:
            if with_blobs.count(name) > 1:
                text = f"several layers with parameters are named {name!r}; rename all but one"
                raise NetError(text, code=ErrorCode.DUPLICATE, layer=name)
        params = {
            layer.name: tuple(blob for blob in layer.blobs if id(blob) in owned)
            for layer in copy.layers
        }
        self._params = {name: blobs for name, blobs in params.items() if blobs}
        self._state = {name: blobs for name, blobs in state.items() if blobs}
        results = {id(copy.blobs[name]) for name in self.outputs if name not in self.loss_weights}
        self._backward = [  # indices and the like have no gradient, and need none as results
            entry for entry in reversed(self._layers) if entry.binding.backward
            and not (type(entry.layer).backward is Layer.backward
                     and all(id(top) in results for top in entry.binding.top))
        ]  # fmt: skip
        self._run = self._backend.opaque(self._apply)
        self._clear()

    def __deepcopy__(self, memo: object) -> NetFunction:
        """Return the function itself, which has no state, for copies of a PyTorch module."""
        return self

    @property
    def params(self) -> dict[str, tuple[Array, ...]]:
        """Copies of the net's present parameters: a tuple for each layer's name.

        Parameters that share memory are there once. Running averages are part of ``state``.
        """
        return self._values(self._params)

    @property
    def state(self) -> dict[str, tuple[Array, ...]]:
        """Copies of the net's present running averages and hidden states, by layer."""
        return self._values(self._state)

    def load(self, params: Tree, state: Tree | None = None) -> None:
        """Write parameters, and state if there is one, into the net.

        Raises:
            ShapeError: A name or a shape is not the net's; nothing is written then.
        """
        pairs: list[tuple[Blob, Any]] = []
        for own, arrays in ((self._params, params), (self._state, state)):
            if arrays is None:
                continue
            flat = self._flatten(arrays, own)
            backend, what = self.device.backend, "a parameter"
            host = [
                backend.to_host(a) if backend.holds(a) else host_array(a, what, self.device)
                for a in flat
            ]
            pairs += list(zip(self._counterparts(own), host, strict=True))
        with self._origin.lock:
            for blob, array in pairs:
                blob.mutable_cpu_data()[...] = array

    def loss(self, outputs: Mapping[str, Array]) -> Array:
        """Return the weighted sum of the outputs that are losses, as ``net.forward()``. Shape: ().

        Raises:
            NetError: No output is a loss.
        """
        if not self.loss_weights:
            message = f"net {self._net.name!r} has no loss among its outputs"
            raise NetError(message, code=ErrorCode.MISSING)
        xp = self._backend.xp
        terms = [xp.sum(outputs[name]) * weight for name, weight in self.loss_weights.items()]
        return sum(terms[1:], start=terms[0])

    def __call__(
        self,
        params: Tree,
        inputs: Mapping[str, Array] | Array,
        state: Tree | None = None,
        key: Any = None,
    ) -> Any:
        """Return the outputs by name; with ``state`` the outputs and the new state.

        Args:
            params: As ``params`` returns them; values of any origin.
            inputs: An array for each input, by name, or the array of the only input. The first
                axis may have any size.
            state: Running averages and hidden states; None for the net's own.
            key: Number of the pass for random numbers, an integer or a 0-d array; needed where
                layers draw.

        Raises:
            NetError: An input is missing or unknown, a layer draws random numbers without a key, or
                a layer reads values on the host (as layers of detections do).
            ShapeError: A parameter has another shape, or a layer does not take an input's.
        """
        given = inputs if isinstance(inputs, Mapping) else dict.fromkeys(self.inputs[:1], inputs)
        if set(given) != set(self.inputs):
            message = f"got inputs {', '.join(given) or 'none'}, expected {', '.join(self.inputs)}"
            raise NetError(message, code=ErrorCode.UNKNOWN, got=list(given))
        xp, dtype = self._backend.xp, self._backend.dtype(self._net.dtype)
        present = self.state if state is None and self._state else state or {}
        arrays = [
            *self._flatten(params, self._params),
            *self._flatten(present, self._state),
            *(given[name] for name in self.inputs),
        ]
        holds, place = self._backend.holds, self._backend.array_device
        arrays = [array if holds(array) else xp.asarray(array, device=place) for array in arrays]
        arrays = [xp.astype(array, dtype, copy=False) for array in arrays]
        if key is None or isinstance(key, Integral):
            results = self._run(None if key is None else int(key), *arrays)
        else:  # an array, which may be traced
            results = self._run(None, *arrays, key)
        outputs = dict(zip(self.outputs, results, strict=False))
        if state is None:
            return outputs
        rest, new = iter(results[len(self.outputs) :]), {}
        for name, blobs in self._state.items():
            new[name] = tuple(next(rest) for _ in blobs)
        return outputs, new

    def _apply(self, key: int | None, *arrays: Array) -> Sequence[Array]:
        """Return outputs and new state; ``arrays`` are parameters, state, inputs, perhaps a key."""
        call = _Call(self, key)
        return self._backend.custom_gradient(call.forward, call.backward)(*arrays)

    def _values(self, tree: Mapping[str, Sequence[Blob]]) -> dict[str, tuple[Array, ...]]:
        values = iter(self._counterparts(tree))
        upload = self.device.backend.asarray
        with self._origin.lock, self.device.backend.enter():
            return {
                name: tuple(upload(next(values).cpu_data()) for _ in blobs)
                for name, blobs in tree.items()
            }

    def _counterparts(self, tree: Mapping[str, Sequence[Blob]]) -> list[Blob]:
        """Return the blobs of the original net for blobs of the function."""
        found = []
        for name, blobs in tree.items():
            mine, theirs = self._net.layer_by_name(name), self._origin.layer_by_name(name)
            places = [*mine.blobs, *mine.all_state_blobs()]
            others = [*theirs.blobs, *theirs.all_state_blobs()]
            index = {id(blob): other for blob, other in zip(places, others, strict=True)}
            found += [index[id(blob)] for blob in blobs]
        return found

    def _flatten(self, given: Tree, own: Mapping[str, Sequence[Blob]]) -> list[Array]:
        """Return the arrays in the order of the layers; others raise a ShapeError."""
        wanted = {name: [blob.shape for blob in blobs] for name, blobs in own.items()}
        got = {name: [tuple(array.shape) for array in arrays] for name, arrays in given.items()}
        if got != wanted:
            names = [name for name in {**wanted, **got} if got.get(name) != wanted.get(name)]
            message = (
                f"got arrays of shapes {got.get(names[0])} for layer {names[0]!r}, expected "
                f"{wanted.get(names[0])}"
            )
            raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, layer=names[0])
        return [array for name in wanted for array in given[name]]

    def _clear(self) -> None:
        """Drop all arrays, which may be those of a trace."""
        for memory in self._net.execution.memories():
            memory.assign(None)
        for layer in self._net.layers:
            layer.clear_constants()


class _Call:
    """One call of a net function: its forward pass, and the backward pass of its derivative."""

    def __init__(self, function: NetFunction, key: int | None) -> None:
        self._function, self._key = function, key
        self._net = function._net
        self._saved: list[Blob] = []

    def forward(
        self, *arrays: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]:
        """Return the outputs, the new state, and the saved arrays of the backward pass."""
        with self._placed(arrays) as placed:
            for entry in self._function._layers:
                with _located(entry, "forward"):
                    _prepare(entry)
                    entry.forward()
            outputs = tuple(self._net.blobs[name].read() for name in self._function.outputs)
            state = tuple(blob.read() for blob in self._of(self._function._state))
            structure = self._net.structure
            internal = (blob for layer in structure.layers for blob in layer.internal_blobs())
            blobs = [*structure.blob_list, *structure.params_list, *internal]
            self._saved = [
                blob
                for blob in {blob.data_memory.serial: blob for blob in blobs}.values()
                if not blob.data_memory.cleared
                and blob.data_memory.device_array is not placed.get(blob.data_memory.serial)
            ]
            return outputs, state, tuple(blob.read() for blob in self._saved)

    def backward(
        self, arrays: Sequence[Array], saved: Sequence[Array], gradients: Sequence[Array]
    ) -> tuple[Array | None, ...]:
        """Return the gradients of ``arrays``; None for those without."""
        function, params = self._function, self._of(self._function._params)
        with self._placed(arrays):
            for entry in function._layers:
                _prepare(entry)
            for blob, array in zip(self._saved, saved, strict=True):
                blob.reshape(tuple(array.shape))
                blob.write(array)
            for name, gradient in zip(function.outputs, gradients, strict=False):
                self._net.blobs[name].write_diff(gradient)
            for entry in function._backward:
                with _located(entry, "backward"):
                    entry.backward()
            inputs = [self._net.blobs[name] for name in function.inputs]
            blobs = [*params, *[None] * len(self._of(function._state)), *inputs]
            blobs += [None] * (len(arrays) - len(blobs))  # the key
            return tuple(
                None if blob is None or blob.diff_memory.cleared else blob.read_diff()
                for blob in blobs
            )

    def _of(self, tree: Mapping[str, Sequence[Blob]]) -> list[Blob]:
        return [blob for blobs in tree.values() for blob in blobs]

    @contextmanager
    def _placed(self, arrays: Sequence[Array]) -> Iterator[dict[int, Array]]:
        """Write the arrays of a call to their blobs; yield the memories' arrays by serial."""
        function = self._function
        own = [*self._of(function._params), *self._of(function._state)]
        blobs = [*own, *(self._net.blobs[name] for name in function.inputs)]
        key = arrays[len(blobs) :]
        with self._net.exclusive("as_function"):
            try:
                self._net.passes = key[0] if key else self._key  # type: ignore[assignment]
                for blob, array in zip(blobs, arrays, strict=False):
                    blob.reshape(tuple(array.shape))
                    blob.write(array)
                yield {b.data_memory.serial: b.data_memory.device_array for b in blobs}
            finally:
                function._clear()


def _prepare(entry: PlannedLayer) -> None:
    """Compute the shapes of a layer's tops, and choose its code for these shapes."""
    entry.reshape()
    while entry.lower() and not entry.lower_backward():
        continue
    entry.executed_step = entry.step


@contextmanager
def _located(entry: PlannedLayer, doing: str) -> Iterator[None]:
    """Name the layer in errors: as the place of ours, in a note of those of a library."""
    place = f"{entry.binding.label}, {doing}"
    try:
        yield
    except DemitasseError as error:
        raise error.at(place) from error.__cause__
    except Exception as error:
        error.add_note(place)
        raise


def _declare_inputs(message: NetParameter, net: Net) -> None:
    """Replace layers that bring in data by Input layers of the same tops."""
    sources = {
        layer.name: layer
        for layer, node in zip(net.layers, net.structure.graph.nodes, strict=True)
        if not (node.bottoms or layer.blobs or layer.type == "Input")
    }
    for layer in message.layer:
        source = sources.get(layer.name)
        if source is None or source.type != layer.type:
            continue
        new = LayerParameter(name=layer.name, type="Input", top=layer.top)
        new.include.extend(layer.include)
        new.exclude.extend(layer.exclude)
        for top in layer.top:
            shape = net.blobs[top].shape if net.has_blob(top) else ()
            new.input_param.shape.add().dim.extend(shape)
        layer.CopyFrom(new)
