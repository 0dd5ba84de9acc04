"""Matrix products of convolutions, their columns, and the threads of numpy's BLAS.

Columns are the values that every tap of a window has at every output position. They are made for a
few images at a time, or for a few rows of one image, so that they stay in the caches. With many
small images, the image index runs fastest in them: copies then move long runs instead of short
rows.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from demitasse.backends.numpy.step import Engine
from demitasse.backends.windows import ConvGeometry, Shape
from demitasse.core.paths import real_path
from demitasse.core.threads import wanted_threads

BUDGET = 1 << 20  # elements of columns that are made at once
BIG_PLANE = 512  # places from which on one image makes an efficient product, if it is a big one too
BIG_PRODUCT = 1 << 24  # multiplications of a big product
SHORT_ROW = 32  # length of a row up to which the image index may run fastest
SOME_IMAGES = 4  # smallest number of images for that path


@dataclass(frozen=True)
class Chunk:
    """A few images, a few rows of their first spatial axis, and the positions along each axis."""

    images: slice
    rows: slice
    positions: Shape

    @property
    def n(self) -> int:
        """Number of images."""
        return int(self.images.stop - self.images.start)


class Columns:
    """Makes columns of images, and adds columns back to images; all arrays are in C order."""

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        g = self.g = geometry
        self.engine, self.dtype = engine, dtype
        self.size = g.window.canvas(g.spatial, g.positions)
        per_image = max(1, g.group * g.height * g.map_plane)
        self.single = per_image >= BUDGET or (
            g.map_plane >= BIG_PLANE
            and (g.window.is_pointwise or g.maps * g.height * g.map_plane >= BIG_PRODUCT)
        )
        self._images = 1 if self.single else _even(g.n, BUDGET // per_image)
        self._rows = _even(g.positions[0], BUDGET * g.positions[0] // per_image)
        # transposing images and maps must cost less than it saves on the columns
        self._images_last = (
            self._images >= SOME_IMAGES
            and g.positions[-1] <= SHORT_ROW
            and g.group * g.height >= 2 * (g.channels + g.maps)
        )
        self._bare = self.size == g.spatial and not self._images_last
        """True if images can be used as they are, without a canvas around them."""
        self._inside = (slice(None), slice(None), *g.window.inside(g.spatial))

    @property
    def workspace(self) -> int:
        """Bytes of scratch in use at once."""
        g = self.g
        positions = self._images * self._rows * math.prod(g.positions[1:])
        canvas = self._images * g.channels * math.prod(self.size)
        count = (g.group * g.height + g.maps) * positions + canvas
        return count * np.dtype(self.dtype).itemsize

    def chunks(self) -> Iterator[Chunk]:
        """Cut the work: all rows of some images come before the next images."""
        g = self.g
        for first in range(0, g.n, self._images):
            images = slice(first, min(first + self._images, g.n))
            for row in range(0, g.positions[0], self._rows):
                rows = slice(row, min(row + self._rows, g.positions[0]))
                yield Chunk(images, rows, (rows.stop - rows.start, *g.positions[1:]))

    # -- columns: (G, C/G taps, n positions)

    def gather(self, image: np.ndarray, chunk: Chunk) -> np.ndarray:
        """Return the columns of an image (n, C, *spatial)."""
        g = self.g
        if g.window.is_pointwise and chunk.n == 1:
            flat = image.reshape(g.n, g.group, g.height, g.map_plane)
            return flat[chunk.images.start, :, :, self._span(chunk)]
        canvas = image[chunk.images]
        if not self._bare:
            canvas = self._canvas(chunk)
            if chunk.rows.start == 0:  # laid when the first rows are asked for
                if self.size != g.spatial:
                    canvas[...] = 0
                canvas[self._inside] = image[chunk.images]
        columns = self.blank(chunk)
        self._windows_of(columns, chunk)[...] = self._windows(canvas, chunk)
        return columns

    def blank(self, chunk: Chunk) -> np.ndarray:
        """Return room for columns."""
        width = chunk.n * math.prod(chunk.positions)
        return self.engine.scratch("columns", (self.g.group, self.g.height, width), self.dtype)

    def scatter(self, columns: np.ndarray, image: np.ndarray, chunk: Chunk) -> None:
        """Add columns up where their taps lie; ``image`` is complete after its last rows."""
        g = self.g
        target = image[chunk.images]
        canvas = target if self._bare else self._canvas(chunk)
        if chunk.rows.start == 0:
            canvas[...] = 0
        parts = self._windows_of(columns, chunk)
        for tap in g.window.taps():
            seen: tuple[slice | int, ...] = (slice(None), slice(None), *tap)
            canvas[self._reach(tap, chunk)] += parts[seen]
        if not self._bare and chunk.rows.stop == g.positions[0]:
            target[...] = canvas[self._inside]

    # -- maps: (G, M/G, n positions)

    def map_of(self, maps: np.ndarray, chunk: Chunk) -> np.ndarray:
        """Return the chunk's part of a map as a matrix: a view, or a copy in scratch."""
        matrix = self.map_room(maps, chunk)
        if chunk.n > 1:
            self._apart(matrix, (self.g.maps,), chunk)[...] = maps[chunk.images]
        return matrix

    def map_room(self, maps: np.ndarray, chunk: Chunk) -> np.ndarray:
        """Return where the chunk's part of a map is to be computed; see ``store``."""
        g = self.g
        shape = (g.group, g.maps // g.group)
        if chunk.n == 1:
            flat = maps.reshape(g.n, *shape, g.map_plane)
            return flat[chunk.images.start, :, :, self._span(chunk)]
        width = chunk.n * math.prod(chunk.positions)
        return self.engine.scratch("map", (*shape, width), self.dtype)

    def store(self, matrix: np.ndarray, maps: np.ndarray, chunk: Chunk) -> None:
        """Put what was computed in ``map_room`` into the map."""
        if chunk.n > 1:
            maps[chunk.images] = self._apart(matrix, (self.g.maps,), chunk)

    # -- views -------------------------------------------------------------------------------------

    def _canvas(self, chunk: Chunk) -> np.ndarray:
        """Return room for the padded images of a chunk: (n, C, *size)."""
        channels = self.g.channels
        if self._images_last:
            room = self.engine.scratch("canvas", (channels, *self.size, chunk.n), self.dtype)
            return np.moveaxis(room, -1, 0)
        return self.engine.scratch("canvas", (chunk.n, channels, *self.size), self.dtype)

    def _windows(self, canvas: np.ndarray, chunk: Chunk) -> np.ndarray:
        """Return what the taps see on a canvas: (n, C, *kernel, *positions), a view."""
        g = self.g
        rows = canvas[:, :, chunk.rows.start * g.window.stride[0] :]
        n, channels, *steps = rows.strides
        taps = [s * d for s, d in zip(steps, g.window.dilation, strict=True)]
        positions = [s * stride for s, stride in zip(steps, g.window.stride, strict=True)]
        shape = (*rows.shape[:2], *g.window.kernel, *chunk.positions)
        return as_strided(rows, shape, (n, channels, *taps, *positions), writeable=False)

    def _windows_of(self, columns: np.ndarray, chunk: Chunk) -> np.ndarray:
        """Return columns as (n, C, *kernel, *positions), a view."""
        return self._apart(columns, (self.g.channels, *self.g.window.kernel), chunk)

    def _apart(self, matrix: np.ndarray, rows: Shape, chunk: Chunk) -> np.ndarray:
        """Return a matrix of ``rows`` and positions as (n, *rows, *positions), a view."""
        if self._images_last:
            return np.moveaxis(matrix.reshape(*rows, *chunk.positions, chunk.n), -1, 0)
        return np.moveaxis(matrix.reshape(*rows, chunk.n, *chunk.positions), len(rows), 0)

    def _reach(self, tap: Shape, chunk: Chunk) -> tuple[slice, ...]:
        """Return the index, on the canvas, of what one tap sees from the chunk's positions."""
        window = self.g.window
        rows, *rest = window.reach(tap, chunk.positions)
        first = chunk.rows.start * window.stride[0]
        moved = slice(rows.start + first, rows.stop + first, rows.step)
        return (slice(None), slice(None), moved, *rest)

    def _span(self, chunk: Chunk) -> slice:
        """Return the chunk's positions within the plane."""
        per_row = math.prod(self.g.positions[1:])
        return slice(chunk.rows.start * per_row, chunk.rows.stop * per_row)


def _even(count: int, most: int) -> int:
    """Return the size of equal parts of ``count``, at most ``most``."""
    parts = -(-count // max(1, most))
    return -(-count // parts)


class Products:
    """Matrix products over columns.

    All arrays are in C order: image (n, C, *spatial), map (n, M, *positions), weight
    (M, C/G, *kernel).
    """

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        self.engine, self.g, self.dtype = engine, geometry, dtype
        self.columns = Columns(engine, geometry, dtype)
        self._direct = geometry.window.is_pointwise and self.columns.single

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
    """Return numpy's BLAS libraries as they are controlled; none where that cannot be done.

    Those of OpenCV and SciPy are left out, but where numpy has none of its own (conda).
    """
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    controller = ThreadpoolController().select(user_api="blas", internal_api="openblas")
    found = list(controller.lib_controllers)
    folder = os.fspath(real_path(np.__file__).parent)  # or numpy.libs, beside it
    return [one for one in found if one.filepath.startswith(folder)] or found


def _set_threads(library: Any, count: int) -> None:
    """Set the threads of a BLAS library.

    Since threadpoolctl 3.8, calls of other threads are ignored until the first one gives way.
    """
    library.set_num_threads(count)
    if hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread()


_passes: weakref.WeakSet[BlasThreads] = weakref.WeakSet()
_before: dict[Any, int] = {}  # threads of each BLAS library before the first pass


class BlasThreads:
    """Limit numpy's BLAS to a number of threads in a pass; None for the configured number.

    The end of the last pass of the process restores the number. No lock and no count can be left
    taken by an interrupt: a pass counts as long as its frame lives. A generator would be slower.
    """

    __slots__ = ("__weakref__", "_threads")

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        """Set the number of threads of the libraries."""
        try:
            _passes.add(self)
            for library in blas():
                has = library.get_num_threads()
                wanted = wanted_threads(has) if self._threads is None else self._threads
                if has != wanted:
                    _before.setdefault(library, has)
                    _set_threads(library, wanted)
        except BaseException:
            BlasThreads.__exit__(self)  # a subclass has entered nothing yet
            raise

    def __exit__(self, *error: object) -> None:
        """Restore the libraries' numbers of threads after the last pass."""
        _passes.discard(self)
        if not _passes:
            for library in blas():
                threads = _before.pop(library, 0)
                if threads:
                    _set_threads(library, threads)
