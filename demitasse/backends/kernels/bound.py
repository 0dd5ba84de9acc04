"""Kernels with their arguments, and loops over vectors of which the last may be partial."""

from collections.abc import Callable, Sequence

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Arguments, CompiledKernel, Values
from demitasse.backends.kernels.language.values import FLOAT, Vector, Word, choose, chunk
from demitasse.backends.kernels.tuning import Tuning


def threads_for(tuning: Tuning, count: int, fewest: int) -> int:
    """Return the threads for a count of elements, of which each has ``fewest`` at least."""
    return max(1, min(tuning.threads, count // fewest))


class BoundKernel:
    """A kernel, or several in a row, with the values of its fields.

    Args:
        name: Name of the code.
        threads: Number of threads; 0 for those of the tuning.
        scratch_size: Elements of scratch memory, whose array is the last of a call.
    """

    def __init__(
        self, name: str, kernels: CompiledKernel | list[CompiledKernel], values: Values,
        tuning: Tuning, threads: int = 0, scratch_size: int = 0,
    ) -> None:  # fmt: skip
        self.tuning, self.scratch_size = tuning, scratch_size
        self.code = f"{name} llvm:{tuning.instructions}"
        self._kernels, self.threads = kernels, threads or tuning.threads
        self._arguments = Arguments(values)
        self._names = [name for name, value in values.flat.items() if value is RUNTIME]

    def __call__(self, *given: np.ndarray | int | None) -> None:
        """Run it with the arrays and integers that it lacks, in the order of the fields."""
        each = dict(zip(self._names, given, strict=True))
        self._arguments.run(self._kernels, self.threads, each)


Body = Callable[..., Sequence[Vector] | None]
"""Takes bytes to a vector, the mask of a partial one, and carried vectors, and returns these."""


def each_vector(
    k: Kernel, count: Word, body: Body, begin: Word | int = 0, vectors: Sequence[Vector] = (),
    *, rare: bool = False,
) -> list[Vector]:  # fmt: skip
    """Write a loop over the vectors of some floats, and then over the last, partial vector.

    Return the ``vectors`` that it carries; it begins at a number of bytes. A ``rare`` loop has
    shorter code for the partial vector; see :meth:`Kernel.lane_mask`.
    """
    whole = count // k.width * k.vector_bytes
    with k.loop(whole, begin, k.vector_bytes, vectors=vectors) as loop:
        loop.vectors = [*(body(loop.i, None, *loop.vectors) or ())]
    with k.loop(count * FLOAT, whole, k.vector_bytes, vectors=loop.vectors) as last:
        some = k.lane_mask(count % k.width, rare=rare)
        last.vectors = [*(body(last.i, some, *last.vectors) or ())]
    return last.vectors


def clearing(k: Kernel, target: Word) -> Body:
    """Return the body that writes zeros from an address on."""
    return lambda place, some: k.store(k.constant(0.0), target + place, some)


def own_vectors(k: Kernel, count: Word, body: Body) -> None:
    """Write this loop over the thread's vectors; the last thread has the partial one."""
    index, threads = k.thread()
    begin, end = (at * k.width for at in chunk(count // k.width, index, threads))
    each_vector(k, choose(index + 1 >= threads, count, end), body, begin * FLOAT, rare=True)
