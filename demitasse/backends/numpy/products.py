"""Matrix products, and the threads of numpy's BLAS."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.numpy.columns import Columns
from demitasse.backends.numpy.step import Engine
from demitasse.backends.windows import ConvGeometry
from demitasse.core.threads import wanted_threads


class Products:
    """Matrix products over columns.

    All arrays are in C order: image (n, C, *spatial), map (n, M, *positions), weight
    (M, C/G, *kernel).

    Args:
        engine: Lends working memory.
        geometry: Image, map and window.
        dtype: Of all arrays.
    """

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        self.engine, self.g, self.dtype = engine, geometry, dtype
        self.columns = Columns(engine, geometry, dtype)
        self._direct = geometry.window.is_pointwise and self.columns.single

    @property
    def workspace(self) -> int:
        """Bytes of scratch in use at once."""
        return self.columns.workspace

    def to_map(
        self, image: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, maps: np.ndarray
    ) -> None:
        """Write the convolution of an image into ``maps``; the bias is (M,)."""
        g, columns = self.g, self.columns
        matrix = self._by_group(weight)
        if self._direct:
            np.matmul(matrix, self._flat_image(image), out=self._flat_map(maps))
            if bias is not None:
                flat = maps.reshape(g.n, g.maps, g.map_plane)
                flat += bias[:, np.newaxis]
            return
        for chunk in columns.chunks():
            gathered = columns.gather(image, chunk)
            room = columns.map_room(maps, chunk)
            np.matmul(matrix, gathered, out=room)
            if bias is not None:
                room += bias.reshape(g.group, -1, 1)
            columns.store(room, maps, chunk)

    def to_image(self, maps: np.ndarray, weight: np.ndarray, image: np.ndarray) -> None:
        """Write the transposed convolution of ``maps`` into ``image``."""
        columns = self.columns
        matrix = self._by_group(weight).transpose(0, 2, 1)
        if self._direct:
            np.matmul(matrix, self._flat_map(maps), out=self._flat_image(image))
            return
        # of a depthwise convolution these are outer products, at which matmul is slow
        multiply = np.multiply if self.g.maps == self.g.group else np.matmul
        for chunk in columns.chunks():
            room = columns.blank(chunk)
            multiply(matrix, columns.map_of(maps, chunk), out=room)
            columns.scatter(room, image, chunk)

    def weight_gradient(self, image: np.ndarray, maps: np.ndarray, out: np.ndarray) -> None:
        """Write into ``out`` the sum over images and positions of map times columns."""
        columns, total = self.columns, self._by_group(out)
        for index, chunk in enumerate(columns.chunks()):
            right = columns.gather(image, chunk).transpose(0, 2, 1)
            left = columns.map_of(maps, chunk)
            if index == 0:
                np.matmul(left, right, out=total)
            else:
                part = self.engine.scratch("partial", total.shape, self.dtype)
                np.matmul(left, right, out=part)
                total += part

    def _by_group(self, weight: np.ndarray) -> np.ndarray:
        return weight.reshape(self.g.group, -1, self.g.height)

    def _flat_image(self, image: np.ndarray) -> np.ndarray:
        g = self.g
        return image.reshape(g.n, g.group, g.channels // g.group, -1)

    def _flat_map(self, maps: np.ndarray) -> np.ndarray:
        g = self.g
        return maps.reshape(g.n, g.group, g.maps // g.group, g.map_plane)


@cache
def blas() -> list[Any]:
    """Return numpy's BLAS libraries as they are controlled; none where that cannot be done."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    controller = ThreadpoolController().select(user_api="blas", internal_api="openblas")
    return list(controller.lib_controllers)


_passes: weakref.WeakSet[held_to] = weakref.WeakSet()
_before: dict[Any, int] = {}
"""Threads of each BLAS library before the first pass."""


class held_to:  # noqa: N801 - is read as what the block is
    """Let numpy's BLAS have so many threads in a pass, None for as many as are wanted.

    What it had comes back when the last pass of the process ends. There is no lock and no count
    that an interrupt could leave taken: a pass counts as long as its frame lives. It is a class,
    for a pass over a small net is not much longer than the two switches of a generator.
    """

    __slots__ = ("__weakref__", "_threads")

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        """Give the libraries as many."""
        try:
            _passes.add(self)
            for library in blas():
                has = library.get_num_threads()
                wanted = wanted_threads(has) if self._threads is None else self._threads
                if has != wanted:
                    _before.setdefault(library, has)
                    library.set_num_threads(wanted)
        except BaseException:
            held_to.__exit__(self)  # a subclass has entered nothing yet
            raise

    def __exit__(self, *error: object) -> None:
        """Restore the libraries' numbers of threads after the last pass."""
        _passes.discard(self)
        if not _passes:
            for library in blas():
                threads = _before.pop(library, 0)
                if threads:
                    library.set_num_threads(threads)
