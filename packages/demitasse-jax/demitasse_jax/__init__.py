"""JAX as a backend of Demitasse: devices ``jax:cpu``, ``jax:cuda:0``, ``jax:tpu:0``, ....

Arrays of JAX are immutable, so memories replace their arrays. float64 needs the setting
``jax_enable_x64``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demitasse.backends import random
from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.backends.recording import TracingRecorder
from demitasse.errors import OutOfMemoryError
from demitasse_jax.lowerings import LOWERINGS

__all__ = ["JaxBackend"]


class JaxBackend(Backend):
    """One device of JAX.

    Args:
        index: Platform and number of the device: "cpu", "cuda:0", "tpu:1".
    """

    name = "jax"
    default_index = "cpu"
    mutable = False
    queues = True
    without_float64 = "set JAX_ENABLE_X64=1, or call jax.config.update('jax_enable_x64', True)"
    xp = jnp
    lowerings = LOWERINGS
    recorder = TracingRecorder(lambda work, *given: jax.jit(work).trace(*given))

    def __init__(self, index: str = "") -> None:
        super().__init__(index or self.default_index)
        platform, _, number = self.index.partition(":")
        self.array_device = jax.local_devices(backend=platform)[int(number or 0)]

    @classmethod
    def devices(cls) -> list[str]:
        found = []
        for platform in ("cpu", "cuda", "rocm", "tpu"):
            with suppress(RuntimeError):  # JAX has no such platform here
                count = len(jax.local_devices(backend=platform))
                found += [f"jax:{platform}:{number}" for number in range(count)]
        return ["jax:cpu" if name == "jax:cpu:0" else name for name in found]

    @property
    def has_float64(self) -> bool:
        """True with the setting ``jax_enable_x64``, on any device but a TPU."""
        return bool(jax.config.jax_enable_x64) and not self.index.startswith("tpu")

    @contextmanager
    def enter(self) -> Iterator[None]:
        with (
            jax.default_device(self.array_device),
            jax.numpy_dtype_promotion("standard"),
            jax.default_matmul_precision("highest"),  # GPUs and TPUs round float32 otherwise
        ):
            try:
                yield
            except jax.errors.JaxRuntimeError as error:
                raise self.explained(error) from error.__cause__

    device_scope = enter

    def environment(self) -> dict[str, str]:
        return {"jax": jax.__version__}

    def explained(self, error: Exception) -> Exception:
        """Return an out-of-memory error of JAX as Demitasse's; other errors as they are."""
        if "RESOURCE_EXHAUSTED" not in str(error):
            return error
        message = f"jax:{self.index} is out of memory ({error}); reduce the batch size"
        return OutOfMemoryError(message, device=f"jax:{self.index}")

    # -- arrays --------------------------------------------------------------------------------

    def dtype(self, name: str) -> Any:
        # int32 is the widest integer type without the setting
        narrow = name == "int64" and not jax.config.jax_enable_x64
        return super().dtype("int32" if narrow else name)

    def zeros(self, size: int, dtype: str) -> Array:
        return jnp.zeros(size, dtype=self.dtype(dtype), device=self.array_device)

    def asarray(self, host: np.ndarray) -> Array:
        self.dtype(host.dtype.name)
        return jax.device_put(np.array(host, order="C"), self.array_device)

    def download(self, device: Array, host: np.ndarray) -> None:
        host[...] = np.asarray(device)

    def to_host(self, array: Array) -> np.ndarray:
        return np.array(array)

    def holds(self, array: Any) -> bool:
        return isinstance(array, jax.Array)

    def set_at(self, array: Array, index: Any, values: Any) -> Array:
        return array.at[index].set(values)

    def add_at(self, array: Array, index: Any, values: Array) -> Array:
        return array.at[index].add(values)

    def scatter_add(self, rows: Array, indices: Array, size: int) -> Array:
        return jax.ops.segment_sum(rows, indices, size)

    # -- work ----------------------------------------------------------------------------------

    def synchronize(self) -> None:
        (jax.device_put(0.0, self.array_device) + 0).block_until_ready()

    def memory_info(self) -> tuple[int, int] | None:
        stats = self.array_device.memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        return stats["bytes_limit"] - stats["bytes_in_use"], stats["bytes_limit"]

    def random_bits(self, seed: int, stream: int, passes: Any, count: int, first: int = 0) -> Array:
        if not isinstance(passes, jax.core.Tracer):
            return super().random_bits(seed, stream, int(passes), count, first)

        words = jax.ShapeDtypeStruct((count,), jnp.uint32)
        draw = lambda number: random.bits(seed, stream, int(number), count, first)  # noqa: E731
        return jax.pure_callback(draw, words, passes, vmap_method="sequential")

    def custom_gradient(
        self, forward: Callable[..., Any], backward: Callable[..., Any]
    ) -> Callable[..., Sequence[Array]]:
        def first(*arrays: Array) -> tuple[Any, Any]:
            results, others, saved = forward(*arrays)
            return (results, others), (arrays, saved)

        run = jax.custom_vjp(lambda *arrays: first(*arrays)[0])
        run.defvjp(first, lambda kept, gradients: tuple(backward(*kept, gradients[0])))
        return lambda *arrays: sum(run(*arrays), ())
