"""Cross-correlation on the GPU: im2col columns, 1x1 products, and cuDNN.

An *image* (N, C, *spatial) and a *map* (N, M, *positions) are connected by a weight
(M, C / group, *kernel). As a matrix the image becomes columns (C * taps, N * positions), the map
becomes rows (M, N * positions); the groups are blocks of either, so that one batched product does
them all.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property, partial

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.convolutions import Convolution, Result, rounds_to_tf32
from demitasse.backends.cupy.library.cublas import Product
from demitasse.backends.cupy.library.cudnn import Executable
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.sums import Total
from demitasse.backends.step import Declined, decline_if
from demitasse.backends.storage import ARRAYS, array_dtype, computed
from demitasse.backends.windows import ConvGeometry
from demitasse.core.config import settings


def two_axes(g: ConvGeometry) -> tuple[int, ...] | None:
    """Return size, kernel, ... for height and width; one axis is a width; None for more."""
    missing = 2 - len(g.spatial)
    if missing < 0:
        return None
    w = g.window
    fields = (
        (g.spatial, 1), (w.kernel, 1), (w.stride, 1), (w.pad, 0), (w.dilation, 1), (g.positions, 1),
    )  # fmt: skip
    return tuple(n for field, neutral in fields for n in ((neutral,) * missing + field))


class Chunk:
    """The kernels and products for some samples at once."""

    def __init__(
        self, engine: Engine, geometry: ConvGeometry, dtype: str, samples: int, axes: Array
    ) -> None:
        self.engine, self.g, self.dtype, self.samples = engine, geometry, dtype, samples
        self._axes, self._flat = axes, two_axes(geometry)
        self._kernels = dict[str, Launch]()
        g = geometry
        self.height = g.group * g.height
        self.length = samples * g.map_plane
        self.alone = samples == 1
        """True for one sample, whose map already has the order of rows."""
        rows, columns, many = g.maps // g.group, g.height, g.group
        product = partial(Product, dtype, batch=many, convolution=True)
        self.to_rows = product(rows, self.length, columns)
        self.to_columns = product(columns, self.length, rows, transpose_a=True)
        self.to_weight = [
            product(rows, columns, self.length, transpose_b=True, accumulate=added, wide=True)
            for added in (False, True)
        ]

    def scratch(self) -> tuple[Array, Array]:
        """Return memory for columns (C * taps, length) and rows (M, length)."""
        sizes = self.height * self.length, self.g.maps * self.length
        columns, rows = self.engine.scratch(self.dtype, *sizes)
        return columns, rows

    def unfold(self, image: Array, columns: Array) -> None:
        """Write an image's columns (im2col)."""
        self._run_on_columns("im2col", self.g.channels * self.length, image, columns)

    def fold(self, columns: Array, image: Array) -> None:
        """Add columns up to an image (col2im)."""
        count = self.samples * self.g.channels * self.g.image_plane
        self._run_on_columns("col2im", count, columns, image)

    def _run_on_columns(self, name: str, count: int, source: Array, target: Array) -> None:
        g, flat, axes = self.g, self._flat, []
        if flat is None:
            name, axes = f"{name}_nd", [self._axes]
            flat = (len(g.spatial), g.window.size, g.map_plane, g.image_plane)
        if name not in self._kernels:
            reach = max(self.height * self.length, self.samples * g.channels * g.image_plane)
            numbers = (count, self.samples, g.channels, *flat)
            launch = self.engine.elementwise("conv", name, self.dtype, *numbers, reach=reach)
            self._kernels[name] = launch
        self._kernels[name](source, target, *axes)

    def run_on_map(self, name: str, *arrays: Array) -> None:
        """Run a kernel that goes through all elements of a map's samples.

        ``samples_to_rows``, ``rows_to_samples``, ``rows_to_samples_with_bias``: rows, bias ->
        samples; or ``add_bias``, which adds a bias to samples.
        """
        if name not in self._kernels:
            g, engine = self.g, self.engine
            about, count = ("conv", name, self.dtype), g.maps * self.length
            if name == "add_bias":
                launch = engine.vectorized(*about, count, g.maps, g.map_plane)
            else:
                launch = engine.elementwise(*about, count, self.samples, g.maps, g.map_plane)
            self._kernels[name] = launch
        self._kernels[name](*arrays)


class PointwiseGradient:
    """The sum of one product per sample, which reads image and map without reordering.

    The window has one element; the layer has one group.

    Shapes: image (n, C, *spatial), maps (n, M, *spatial), weight (M, C, 1, ...).
    """

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        self._engine, self._dtype, self._samples = engine, dtype, geometry.n
        self._sums = computed(dtype)
        self._sides = (geometry.maps, geometry.channels, geometry.map_plane)
        self._count = geometry.maps * geometry.channels
        nbytes = max(1, self._count * np.dtype(self._sums).itemsize)
        self._step = max(1, min(engine.column_budget // nbytes, geometry.n))
        self._ones = engine.asarray(np.ones(self._step, self._sums))

    @staticmethod
    def pays(g: ConvGeometry) -> bool:
        """Return whether this moves less memory than image and map written in the order of rows.

        Here, one weight is written for each sample.
        """
        if not g.window.is_pointwise or g.group != 1:
            return False
        return g.n <= 1 or g.maps * g.channels < (g.maps + g.channels) * g.map_plane

    def compute(self, maps: Array, image: Array, total: Array, *, added: bool) -> None:
        """Write the gradient to ``total``, or add it."""
        product = partial(
            Product, self._dtype, *self._sides, transpose_b=True, convolution=True, wide=True
        )
        if self._samples <= 1:
            one = product(accumulate=added, batch=self._samples)
            self._engine.multiply(one, maps, image, total)
            return
        maps, image = (array.reshape(self._samples, -1) for array in (maps, image))
        for first in range(0, self._samples, self._step):
            part = slice(first, min(first + self._step, self._samples))
            number = part.stop - first
            each = product(batch=number)
            summed = Product(self._sums, 1, self._count, number, accumulate=added or first > 0)
            [weights] = self._engine.scratch(self._sums, number * self._count)
            self._engine.multiply(each, maps[part], image[part], weights)
            self._engine.multiply(summed, self._ones[:number], weights, total)


class Correlation:
    """Image to map, map to image, and the gradient of the weight between them.

    Shapes: image (n, C, *spatial), maps (n, M, *positions), weight (M, C / group, *kernel),
        bias (M,).
    """

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        g = self.g = geometry
        self.engine, self.dtype, self.samples = engine, dtype, g.n
        sample = (g.group * g.height + g.maps) * g.map_plane * np.dtype(array_dtype(dtype)).itemsize
        most = max(1, engine.column_budget // sample)
        number = max(1, -(-g.n // most))
        self.step = max(1, -(-g.n // number))
        w = g.window
        rows = (g.spatial, w.kernel, w.stride, w.pad, w.dilation, g.positions)
        self._axes = engine.asarray(np.array(rows, np.int32))  # (6, axes)
        self._chunks: dict[int, Chunk] = {}
        self.direct = g.window.is_pointwise and g.group == 1
        """True if products with the weight read and write images themselves, without columns."""
        self.map_code = "cuBLAS" if self.direct else "im2col + cuBLAS"
        """Name of the code that computes the map."""
        self.image_code = "cuBLAS" if self.direct else "cuBLAS + col2im"
        """Name of the code that computes the image."""
        product = partial(Product, dtype, batch=g.n, shares_a=True, convolution=True)
        self._direct = product(g.maps, g.map_plane, g.channels)
        self._direct_transposed = product(g.channels, g.map_plane, g.maps, transpose_a=True)
        self._pointwise: PointwiseGradient | None = None
        if PointwiseGradient.pays(g):
            self._pointwise = PointwiseGradient(engine, g, dtype)

    def backward_code(self, results: Collection[Result]) -> str:
        """Return the name of the code that computes these products."""
        unfolds = "weight" in results and self._pointwise is None
        return "cuBLAS" if self.direct and not unfolds else "im2col + cuBLAS"

    def forward(self, image: Array, weight: Array, bias: Array | None, maps: Array) -> None:
        """Compute the map of an image."""
        if self.direct:
            self.engine.multiply(self._direct, weight, image, maps)
            if bias is not None:
                self._chunk(self.samples).run_on_map("add_bias", maps, bias)
            return
        self._make_room()
        for chunk, (source, target) in self._parts(image, maps):
            columns, rows = chunk.scratch()
            chunk.unfold(source, columns)
            self.engine.multiply(chunk.to_rows, weight, columns, target if chunk.alone else rows)
            if bias is None and not chunk.alone:
                chunk.run_on_map("rows_to_samples", rows, target)
            elif bias is not None and not chunk.alone:
                chunk.run_on_map("rows_to_samples_with_bias", rows, bias, target)
            elif bias is not None:
                chunk.run_on_map("add_bias", target, bias)

    def backward(
        self, maps: Array, weight: Array, *, image: Array | None = None, total: Total | None = None,
        spread: Array | None = None,
    ) -> None:  # fmt: skip
        """Compute the two products that begin with a map: for the weight and for the image.

        ``maps`` is a convolution's top gradient, or a deconvolution's bottom. The product with
        ``image`` goes to ``total``, the weight's gradient. ``spread`` is overwritten: a
        convolution's bottom gradient, a deconvolution's top. Unwanted results are None.
        """
        if self.direct and spread is not None:
            self.engine.multiply(self._direct_transposed, weight, maps, spread)
            spread = None
        if self._pointwise is not None and total is not None:
            self._pointwise.compute(maps, image, total[0], added=total[1])
            total = None
        if total is None and spread is None:
            return
        self._make_room()
        for chunk, (own, seen, target) in self._parts(maps, image, spread):
            columns, scratch = chunk.scratch()
            rows = own if chunk.alone else scratch
            if not chunk.alone:
                chunk.run_on_map("samples_to_rows", own, rows)
            if total is not None:
                chunk.unfold(seen, columns)
                self.engine.multiply(chunk.to_weight[total[1]], rows, columns, total[0])
                total = total[0], True
            if target is not None:
                self.engine.multiply(chunk.to_columns, weight, rows, columns)
                chunk.fold(columns, target)

    def _make_room(self) -> None:
        """Halve the samples of a chunk until scratch memory for its columns can be allocated."""
        while self.samples:
            try:
                self._chunk(min(self.step, self.samples)).scratch()
            except MemoryError:
                if self.step == 1:
                    raise
                self.step = -(-self.step // 2)
            else:
                return

    def _parts(self, *arrays: Array) -> Iterator[tuple[Chunk, tuple[Array, ...]]]:
        """Cut arrays (N, ...), or None, into chunks of samples."""
        if self.step >= self.samples:
            if self.samples:
                yield self._chunk(self.samples), arrays
            return
        flat = [None if a is None else a.reshape(self.samples, -1) for a in arrays]
        for first in range(0, self.samples, self.step):
            part = slice(first, min(first + self.step, self.samples))
            chunk = self._chunk(part.stop - first)
            yield chunk, tuple(None if a is None else a[part] for a in flat)

    def _chunk(self, samples: int) -> Chunk:
        if samples not in self._chunks:
            self._chunks[samples] = Chunk(self.engine, self.g, self.dtype, samples, self._axes)
        return self._chunks[samples]


FEW_CHANNELS, MANY_POSITIONS = 4, 1 << 17
"""An image of so few channels and so many positions has a weight gradient that cuDNN is slow at."""


def best_as_products(convolution: Convolution, *, tf32: bool) -> bool:
    """Return whether ``Correlation`` takes less time than the plan that cuDNN recommends.

    Measured on an H200 with cuDNN 9.19 (172 convolutions of nine nets): without TF32 a pointwise
    weight gradient takes a third of the time on average, the other pointwise products 0.7 of it.
    """
    g = convolution.geometry
    weight = convolution.result == "weight"
    if convolution.dtype in ARRAYS or g.group != 1 or (weight and tf32):
        return False
    if g.window.is_pointwise:
        return True
    if weight and g.channels <= FEW_CHANNELS:
        return g.n * g.map_plane >= MANY_POSITIONS
    strided = math.prod(g.window.kernel) == 1 and not any(g.window.pad)
    return strided and convolution.result != "maps" and not tf32


class LibraryCorrelation:
    """Cross-correlation by a library, but for products that ``Correlation`` computes faster.

    Arrays have the shapes of ``Correlation``; with ``last``, images, maps and weights have channels
    last, and the library computes all products. Declined if it computes no wanted product.
    """

    def __init__(
        self, engine: Engine, geometry: ConvGeometry, dtype: str, wanted: Collection[Result], *,
        bias: bool, last: bool,
    ) -> None:  # fmt: skip
        self.engine, self.dtype, self.g, self.last = engine, dtype, geometry, last
        self._prepared = dict[Result, Executable]()
        self._adds_bias = False
        """True if the library adds the bias, too."""
        reasons = dict[str, None]()
        for result in wanted:
            try:
                convolution = Convolution(result, geometry, dtype, last=last)
                self._prepared[result] = self._prepare(convolution)
            except Declined as declined:
                reasons[str(declined)] = None
        if not self._prepared or (last and reasons):
            raise Declined("; ".join(reasons))
        if bias and "maps" in self._prepared:
            appended = Convolution("maps", geometry, dtype, bias=True, last=last)
            with suppress(Declined):  # where the library adds the bias fast
                self._prepared["maps"] = engine.prepare_convolution(appended)
                self._adds_bias = True
        maps, plane = geometry.maps, geometry.map_plane
        count = geometry.n * maps * plane
        places = 1 if last else plane
        self._add_bias = engine.vectorized("conv", "add_bias", dtype, count, maps, places)
        self._weights = maps * geometry.height
        taps = math.prod(geometry.window.kernel)
        self._reorders = last and taps > 1
        """True if gradients of the weight are computed with channels last."""
        sizes = (maps, taps, geometry.height // taps)
        self._write_weights, self._add_weights = (
            engine.transposed("transposed_sum", dtype, sizes, add)
            if self._reorders
            else engine.vectorized("storage", "widen", dtype, self._weights, add)
            for add in (0, 1)
        )
        for result in self._prepared:
            self._scratch(result)  # so that a pass allocates nothing

    @property
    def map_code(self) -> str:
        found = self._prepared.get("maps")
        return self._own.map_code if found is None else found.code

    @property
    def image_code(self) -> str:
        found = self._prepared.get("image")
        return self._own.image_code if found is None else found.code

    def backward_code(self, results: Collection[Result]) -> str:
        codes = dict[str, None]()
        for result in results:
            found = self._prepared.get(result)
            codes[self._own.backward_code([result]) if found is None else found.code] = None
        return ", ".join(codes) or "none"

    def forward(self, image: Array, weight: Array, bias: Array | None, maps: Array) -> None:
        if "maps" not in self._prepared:
            self._own.forward(image, weight, bias, maps)
            return
        workspace, _ = self._scratch("maps")
        appended = bias if self._adds_bias else None
        self._prepared["maps"].run(image, weight, maps, appended, workspace)
        if bias is not None and not self._adds_bias:
            self._add_bias(maps, bias)

    def backward(
        self, maps: Array, weight: Array, *, image: Array | None = None, total: Total | None = None,
        spread: Array | None = None,
    ) -> None:  # fmt: skip
        if total is not None and "weight" in self._prepared:
            workspace, fresh = self._scratch("weight")
            target, added = total
            direct = not (added or self._reorders or self.dtype in ARRAYS)
            self._prepared["weight"].run(image, target if direct else fresh, maps, None, workspace)
            if not direct:
                (self._add_weights if added else self._write_weights)(fresh, target)
            total = None
        if spread is not None and "image" in self._prepared:
            workspace, _ = self._scratch("image")
            self._prepared["image"].run(spread, weight, maps, None, workspace)
            spread = None
        if total is not None or spread is not None:
            self._own.backward(maps, weight, image=image, total=total, spread=spread)

    @cached_property
    def _own(self) -> Correlation:
        return Correlation(self.engine, self.g, self.dtype)

    def _prepare(self, convolution: Convolution) -> Executable:
        """Return a product by the library, unless it takes more time."""
        if self.last:
            return self.engine.prepare_convolution(convolution)
        slower = best_as_products(convolution, tf32=rounds_to_tf32())
        why = "matrix products take less time than the plan that cuDNN recommends"
        decline_if(slower and not settings.get("cudnn_autotune"), why)
        # own kernels sum the gradient of a weight in float32, and have no rival's array for that
        alone = self.dtype in ARRAYS and convolution.result == "weight"
        rival = None if alone else partial(self._run, convolution)
        return self.engine.prepare_convolution(convolution, rival)

    def _run(self, convolution: Convolution, image: Array, weight: Array, maps: Array) -> None:
        """Run a product by own kernels."""
        match convolution.result:
            case "maps":
                self._own.forward(image, weight, None, maps)
            case "image":
                self._own.backward(maps, weight, spread=image)
            case "weight":
                self._own.backward(maps, weight, image=image, total=(weight, False))

    def _scratch(self, result: Result) -> tuple[Array, Array]:
        """Return the workspace of a product, and memory for a gradient of the weight."""
        dtype = array_dtype(self.dtype)
        weights = self._weights * np.dtype(dtype).itemsize if result == "weight" else 0
        fresh, workspace = self.engine.scratch("uint8", weights, self._prepared[result].workspace)
        return workspace, fresh.view(dtype)
