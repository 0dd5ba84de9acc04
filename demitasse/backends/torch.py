"""PyTorch's tensors: a CPU, an NVIDIA or AMD GPU, Apple's or Intel's, through one library.

Layers run their portable code; nothing is lowered. This backend is found by its entry point, as
those of other packages are. Devices are ``torch:cpu``, ``torch:cuda:0``, ``torch:mps``, ....
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from demitasse.backends import random
from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.errors import DeviceError, ErrorCode, NetError, OutOfMemoryError


class TorchBackend(Backend):
    """One device of PyTorch ("cpu", "cuda:0", "mps"), without its automatic differentiation."""

    name = "torch"
    default_index = "cpu"

    def __init__(self, index: str = "") -> None:
        super().__init__(index or self.default_index)
        self._torch = _library()
        self.xp = import_module("array_api_compat.torch")
        self.array_device = self._torch.device(self.index)
        self._on_host = self.array_device.type == "cpu"
        self.has_float64 = self.array_device.type != "mps"

    @classmethod
    def devices(cls) -> list[str]:
        try:
            torch = _library()
        except DeviceError:
            return []
        found = ["torch:cpu"]
        for kind in ("cuda", "xpu"):
            found += [f"torch:{kind}:{i}" for i in range(getattr(torch, kind).device_count())]
        if torch.backends.mps.is_available():
            found.append("torch:mps")
        return found

    @classmethod
    def missing(cls) -> str:
        try:
            _library()
        except DeviceError as error:
            return error.message
        return super().missing()

    @contextmanager
    def enter(self) -> Iterator[None]:
        # inference_mode would make arrays that may not be written to outside of a pass; a
        # functional backend leaves gradients on, since PyTorch differentiates its functions
        mode = self._torch.no_grad() if self.mutable else nullcontext()
        with mode, self._failures():
            yield

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert PyTorch's out-of-memory errors to OutOfMemoryError."""
        try:
            yield
        except RuntimeError as error:
            kind, said = type(error).__name__, str(error).lower()
            lacks = "out of memory" in said or "can't allocate memory" in said
            if isinstance(error, OutOfMemoryError) or not (lacks or kind == "OutOfMemoryError"):
                raise
            message = (
                f"torch:{self.index} is out of memory ({error}). Reduce the batch size, stop other "
                f"programs on the device, or use a device with more memory"
            )
            raise OutOfMemoryError(message, device=f"torch:{self.index}") from error

    def zeros(self, size: int, dtype: str) -> Array:
        with self._failures():
            return self._torch.zeros(size, dtype=self.dtype(dtype), device=self.array_device)

    def upload(self, host: np.ndarray, device: Array) -> None:
        device.copy_(self._torch.from_numpy(host if host.flags.writeable else host.copy()))

    def download(self, device: Array, host: np.ndarray) -> None:
        self._torch.from_numpy(host).copy_(device)

    def asarray(self, host: np.ndarray) -> Array:
        self.dtype(host.dtype.name)
        # PyTorch refuses negative strides, and warns of arrays that are not writable
        with self._failures():
            return self._torch.from_numpy(np.array(host, order="C")).to(self.array_device)

    def to_host(self, array: Array) -> np.ndarray:
        return np.array(array.detach().cpu().numpy())

    def view(self, flat: Array, shape: tuple[int, ...], count: int) -> Array:
        return flat[:count].view(shape)

    def scatter(self, values: Array, indices: Array, size: int) -> Array:
        result = self._torch.zeros(size, dtype=values.dtype, device=self.array_device)
        # of several values for one index, PyTorch may keep any; numpy keeps the last one
        if self._on_host and not values.requires_grad:
            result.numpy()[indices.numpy()] = values.numpy()
        else:
            result[indices] = values
        return result

    def scatter_add(self, rows: Array, indices: Array, size: int) -> Array:
        if not self._on_host:  # on GPUs, index_add_ adds in an order that changes
            return super().scatter_add(rows, indices, size)
        result = self._torch.zeros((size, rows.shape[1]), dtype=rows.dtype)
        return result.index_add_(0, indices, rows)

    def synchronize(self) -> None:
        if not self._on_host:
            self._torch.accelerator.synchronize(self.array_device)

    def memory_info(self) -> tuple[int, int] | None:
        if self.array_device.type not in {"cuda", "xpu"}:
            return None
        free, total = getattr(self._torch, self.array_device.type).mem_get_info(self.array_device)
        return free, total

    def random_bits(self, seed: int, stream: int, passes: int, count: int, first: int = 0) -> Array:
        # PyTorch stores 32-bit words without a sign, but does not compare them
        words = random.bits(seed, stream, passes, count, first)
        return self.asarray(words.astype(np.int64))

    def custom_gradient(
        self,
        forward: Callable[..., tuple[Sequence[Array], Sequence[Array], Sequence[Array]]],
        backward: Callable[..., Sequence[Array | None]],
    ) -> Callable[..., Sequence[Array]]:
        many = results = others = 0
        used: list[int] = []
        torch: Any = self._torch
        base: Any = torch.autograd.Function

        class Function(base):  # type: ignore[misc]
            generate_vmap_rule = True

            @staticmethod
            def forward(*arrays: Array) -> tuple[Array, ...]:
                nonlocal many, results, others
                found, more, saved = forward(*arrays)
                many, results, others = len(arrays), len(found), len(found) + len(more)
                # views: PyTorch treats a result that is an argument or another result differently
                return tuple(array.view_as(array) for array in (*found, *more, *saved))

            @staticmethod
            def setup_context(ctx: Any, inputs: Sequence[Array], output: Sequence[Array]) -> None:
                ctx.mark_non_differentiable(*output[results:])
                ctx.save_for_backward(*inputs, *output[others:])

            @staticmethod
            def backward(ctx: Any, *gradients: Array) -> tuple[Array | None, ...]:
                found = Gradient.apply(*ctx.saved_tensors, *gradients[:results])
                by_argument = dict(zip(used, found, strict=True))
                return tuple(by_argument.get(index) for index in range(many))

        class Gradient(base):  # type: ignore[misc]
            """The gradient, whose own derivative is PyTorch's of the code of both passes."""

            generate_vmap_rule = True

            @staticmethod
            def forward(*tensors: Array) -> tuple[Array, ...]:
                end = len(tensors) - results
                found = backward(tensors[:many], tensors[many:end], tensors[end:])
                used[:] = [index for index, array in enumerate(found) if array is not None]
                return tuple(array.view_as(array) for array in found if array is not None)

            @staticmethod
            def setup_context(ctx: Any, inputs: Sequence[Array], output: Sequence[Array]) -> None:
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx: Any, *gradients: Array) -> tuple[Array | None, ...]:
                tensors, places = ctx.saved_tensors, [*used, *range(-results, 0)]

                def run(*given: Array) -> tuple[Array, ...]:
                    arrays = list(tensors)
                    for place, array in zip(places, given, strict=True):
                        arrays[place] = array
                    saved = forward(*arrays[:many])[2]
                    found = backward(arrays[:many], saved, arrays[len(arrays) - results :])
                    return tuple(found[index] for index in used)

                found = [None] * len(tensors)
                pull = torch.func.vjp(run, *(tensors[place] for place in places))[1]
                for place, array in zip(places, pull(gradients), strict=True):
                    found[place] = array
                return tuple(found)

        return lambda *arrays: Function.apply(*arrays)[:others]

    def opaque(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # torch.compile then traces the operations on tensors, and not the engine's Python code
        def run(*arguments: Any) -> Any:
            return function(*arguments)

        self._torch.compiler.allow_in_graph(run)
        return run


def module_of(function: Any) -> Any:
    """Return a net function as a ``torch.nn.Module``; see ``Net.as_torch_module``."""
    torch = _library()
    base: Any = torch.nn.Module

    class NetModule(base):  # type: ignore[misc]
        """A net of Demitasse as a module: parameters, running averages and passes."""

        def __init__(self) -> None:
            super().__init__()
            self.function, self.passes = function, 0
            self.layers, self._keys = torch.nn.ModuleDict(), dict[str, str]()
            self._attributes = {"param": dict[str, list[str]](), "state": dict[str, list[str]]()}
            for name, arrays in function.params.items():
                keys = ["weight", "bias", *(f"param{index}" for index in range(2, len(arrays)))]
                self._attributes["param"][name] = keys[: len(arrays)]
                for key, array in zip(keys, arrays, strict=False):
                    self._layer(name).register_parameter(key, torch.nn.Parameter(array))
            for name, arrays in function.state.items():
                self._attributes["state"][name] = [f"state{index}" for index in range(len(arrays))]
                for key, array in zip(self._attributes["state"][name], arrays, strict=True):
                    self._layer(name).register_buffer(key, array)
            self.train(function.phase == "TRAIN")

        def _layer(self, name: str) -> Any:
            if name not in self._keys:
                key = name.replace(".", "_") or "_"
                while hasattr(self.layers, key):
                    key += "_"  # a name that PyTorch refuses, or that another layer has
                self.layers[key] = torch.nn.Module()
                self._keys[name] = key
            return self.layers[self._keys[name]]

        def forward(self, *inputs: Any, **named: Any) -> Any:
            """Return the only output, or the outputs by name; arrays are the net's inputs."""
            given = dict(zip(function.inputs, inputs, strict=False))
            if len(given) < len(inputs) or given.keys() & named.keys():
                message = f"got {len(inputs)} and {[*named]}, expected {function.inputs}, each once"
                raise NetError(message, code=ErrorCode.UNKNOWN, got=list(named))
            named |= given
            params, state = (  # attributes, as a parametrization computes some from others
                {name: tuple(getattr(self._layer(name), key) for key in keys)
                 for name, keys in tree.items()}
                for tree in self._attributes.values()
            )  # fmt: skip
            outputs, new = function(params, named, state, self.passes)
            if self.training:
                self.passes += 1
                for name, arrays in new.items():
                    for index, array in enumerate(arrays):  # replaced, since backward reads it
                        setattr(self._layer(name), f"state{index}", array)
            return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    return NetModule()


def _library() -> Any:
    """Return PyTorch; raise DeviceError with advice if it cannot be imported."""
    try:
        return import_module("torch")
    except Exception as error:  # whatever a broken installation raises
        absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        install = 'PyTorch is not installed; pip install "demitasse[torch]"'
        why = install if absent else f"PyTorch cannot be imported: {error}"
        raise DeviceError(why, code=ErrorCode.UNAVAILABLE, package="torch") from error
