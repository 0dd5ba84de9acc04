"""The gradients of a normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from demitasse.backends.kernels.elementwise import MOST, Numbers, PointerArray
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, INT, Vector, Word, choose, fma
from demitasse.backends.kernels.norm.forward import Normalization
from demitasse.backends.kernels.norm.images import (
    Counts,
    ImageLoopFields,
    Plane,
    counts,
    each_plane,
    image_loop_values,
    summed,
)
from demitasse.core.frozen_struct import FrozenStruct

KEPT = 2
"""Vectors that a thread keeps of the channels it is at."""


class GradientFanout(FrozenStruct):
    """Targets of the input's gradient after adding the gradients of other readers.

    Attributes:
        before: How many gradients are added before it.
        after: How many are added after it.
        parts: Where the elements of each part lie, whose channels follow each other.
        copies: Number of targets of each part.
    """

    before: int
    after: int
    parts: tuple[Images, ...]
    copies: int = 1

    @property
    def targets(self) -> int:
        """Number of outputs."""
        return len(self.parts) * self.copies

    def fits(self, whole: Images, width: int) -> bool:
        """Return whether vectors of the parts' pixels lie like those of the whole.

        Args:
            whole: Where all gradients lie that are added.
            width: Channels of a vector.
        """
        if self.targets > MOST or self.before + self.after >= MOST:
            return False
        if self.parts == (whole,):
            return True
        return whole.block % width == 0 and all(
            part.block == whole.block
            and part.column_stride == whole.column_stride
            and part.is_even
            and part.shape[1] % part.block == 0
            for part in self.parts
        )

    def table(self, width: int) -> np.ndarray:
        """Return for each vector its part, and bytes from that's beginning to its first pixel."""
        rows = [
            (number, part.place(channel) * FLOAT)
            for number, part in enumerate(self.parts)
            for channel in range(0, part.shape[1], width)
        ]
        return np.array(rows, np.int64)


class BackwardFields(Struct):
    """The gradients of a normalisation."""

    walk: ImageLoopFields
    """The planes."""
    x: Address
    """Address of the first image, before the normalisation."""
    dy: Address
    """Address of the first gradient of the output; all lie alike."""
    dx: OptionalAddress
    """Address of the first gradient of the input; it may be the same. 0 where it is handed on."""
    factors: Address
    """Address of one factor for each channel."""
    offsets: Address
    """Address of the channels' offsets."""
    mean: Address
    """Address of the channels' means."""
    inverse: Address
    """Address of the channels' inverse deviations."""
    factor_gradients: Output
    """Address of the gradients of factors, which are written."""
    offset_gradients: Output
    """Address of the gradients of offsets, which are written."""
    behind: OptionalAddress
    """Address of the first gradient behind the norm, before factors and offsets, which is written
    where it is wanted; it may be the output's."""
    others: PointerArray
    """First gradients of the other readers, in the same layout, for fused gradient sums."""
    targets: PointerArray
    """The first gradients of those to whom it is handed, part by part."""
    strides: Numbers
    """Bytes from one image of a part to the next."""
    part_table: OptionalAddress
    """Address of the table of vectors: for each, its part, and bytes from that's beginning."""


class _Added(FrozenStruct):
    """Parameters of :class:`GradientFanout` that the kernel's code depends on."""

    before: int
    after: int
    parts: int
    copies: int

    @classmethod
    def by(cls, handed: GradientFanout) -> _Added:
        """Return that of some."""
        return cls(handed.before, handed.after, len(handed.parts), handed.copies)


@cache
def _kernels(
    width: int, *, relu: bool, rest: bool, behind: bool, added: _Added | None
) -> tuple[int, int]:
    """Return the addresses of the kernels that sum over planes and that write gradients."""
    relu_and_rest = f"{'_relu' if relu else ''}{'_rest' if rest else ''}"
    sums = f"normalization_gradient_planes{width}{relu_and_rest}"
    write_sums = partial(_write_sums, name=sums, width=width, relu=relu, rest=rest)
    name = f"normalization_gradient{width}{relu_and_rest}{'_behind' if behind else ''}"
    if added is not None:
        name += f"_to{added.parts}x{added.copies}_with{added.before}_{added.after}"
    write = partial(
        _write, name=name, width=width, relu=relu, rest=rest, behind=behind, added=added
    )
    return compiled(sums, write_sums, sums)[sums], compiled(name, write, name)[name]


class _Channels:
    """Statistics and factors of a plane's channels."""

    def __init__(self, k: Kernel, f: BackwardFields, plane: Plane, *, relu: bool) -> None:
        self._k, self._f, self._plane = k, f, plane
        self.mean, self.inverse, self.given = (
            plane.load(k, address + plane.channels) for address in (f.mean, f.inverse, f.factors)
        )
        self.factor = self.inverse * self.given
        self._offset = plane.load(k, f.offsets + plane.channels) if relu else None

    def pixel(self, at: Word) -> tuple[Vector, Vector]:
        """Return a pixel's deviation, and the gradient that the rectifier let pass."""
        k, f, plane = self._k, self._f, self._plane
        for array in (f.x, f.dy):
            k.prefetch(array + plane.following + at, 2)
        away = plane.load(k, f.x + plane.first + at) - self.mean
        dy = plane.load(k, f.dy + plane.first + at)
        if self._offset is not None:
            zero = k.constant(0.0)
            dy = choose(fma(away, self.factor, self._offset) > zero, dy, zero)
        return away, dy


def _write_sums(module: Any, name: str, width: int, *, relu: bool, rest: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = BackwardFields.read(k)
    stride = f.walk.pixel_stride * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        _sum_up(k, plane, _Channels(k, f, plane, relu=relu), f.walk.pixels, stride)
    k.done()


def _write(
    module: Any,
    name: str,
    width: int,
    *,
    relu: bool,
    rest: bool,
    behind: bool,
    added: _Added | None,
) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = BackwardFields.read(k)
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    own = k.scratch(KEPT)
    with each_plane(k, f.walk, rest=rest) as plane:
        channels = _Channels(k, f, plane, relu=relu)
        with k.when(plane.begins):
            _join(k, f, plane, channels, numbers, own)
        level, slope = k.load(own), k.load(own + k.vector_bytes)
        targets = [f.dx + plane.first] if added is None else _targets(k, f, plane, added)
        with k.loop(f.walk.pixels) as pixel:
            at = pixel.i * stride
            away, dy = channels.pixel(at)
            slopes = fma(away, slope, fma(dy, channels.factor, level))
            if added is not None:
                slopes = _total(k, f, plane, added, at, slopes)
            for target in targets:
                plane.store(k, slopes, target + at)
            if behind:
                plane.store(k, dy * channels.given, f.behind + plane.first + at)
    k.done()


def _targets(k: Kernel, f: BackwardFields, plane: Plane, added: _Added) -> list[Word]:
    """Return the target address of a plane's first pixel."""
    entry = f.part_table + plane.channels // k.vector_bytes * (2 * INT)
    part, first = k.load_words(entry, 2)
    here = first + plane.image * _chosen(f.strides.some(added.parts), part)
    targets = f.targets.some(added.parts * added.copies)
    return [_chosen(targets[copy :: added.copies], part) + here for copy in range(added.copies)]


def _chosen(words: Sequence[Word], index: Word) -> Word:
    """Return one of some words."""
    found = words[0]
    for place, word in enumerate(words[1:], 1):
        found = choose(index < place, found, word)
    return found


def _total(
    k: Kernel, f: BackwardFields, plane: Plane, added: _Added, at: Word, own: Vector
) -> Vector:
    """Return a pixel's gradient with those of other readers, added in their order."""
    others = f.others.some(added.before + added.after)
    for other in others:
        k.prefetch(other + plane.following + at, 2)
    terms = [plane.load(k, other + plane.first + at) for other in others]
    terms.insert(added.before, own)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _sum_up(k: Kernel, plane: Plane, channels: _Channels, pixels: Word, stride: Word) -> None:
    """Write the sums of a plane's gradients, and of their products with the deviations."""

    def add(at: Word, sums: Any) -> list[Vector]:
        away, dy = channels.pixel(at)
        return [sums[0] + dy, fma(away, dy, sums[1])]

    zero = k.constant(0.0)
    for place, total in enumerate(summed(k, pixels, stride, [zero, zero], add)):
        k.store(total, plane.sums + place * k.vector_bytes)


def _join(
    k: Kernel, f: BackwardFields, plane: Plane, channels: _Channels, numbers: Counts, own: Word
) -> None:
    """Write the gradients of factors and offsets; keep the terms for the input's gradient."""
    zero, step = k.constant(0.0), 2 * k.vector_bytes
    with k.loop(f.walk.images, vectors=[zero, zero]) as image:
        at, (total, products) = plane.all_sums + image.i * step, image.vectors
        image.vectors = [total + k.load(at), products + k.load(at + k.vector_bytes)]
    total, products = image.vectors
    products = products * channels.inverse
    by = channels.factor * numbers.each
    k.store(-(total * by), own)
    k.store(-(products * by * channels.inverse), own + k.vector_bytes)
    with k.when(plane.image < 1):
        plane.store(k, products, f.factor_gradients + plane.channels)
        plane.store(k, total, f.offset_gradients + plane.channels)


class NormalizationGradient:
    """The gradients of input, factors and offsets.

    Args:
        forward: The normalisation, whose statistics are read.
        behind: Whether the gradient behind the norm is wanted too, before factors and offsets.
        handed: Targets of the input's gradient; None to write only the gradient.

    Raises:
        ValueError: What is handed on lies differently.
    """

    def __init__(
        self, forward: Normalization, *, behind: bool = False, handed: GradientFanout | None = None
    ) -> None:
        images, width = forward.images, forward.tuning.width
        if handed is not None and not handed.fits(images, width):
            message = f"{handed} was given; give up to {MOST} parts that lie like {images}"
            raise ValueError(message)
        self.forward = forward
        self._kernels = _kernels(
            width,
            relu=forward.relu,
            rest=forward.rest,
            behind=behind,
            added=None if handed is None else _Added.by(handed),
        )
        others = targets = 0
        strides: list[int] = []
        if handed is not None:
            others, targets = handed.before + handed.after, handed.targets
            strides = [part.image_stride * FLOAT for part in handed.parts]
        self._handed_names = [
            *PointerArray.names("others", others),
            *PointerArray.names("targets", targets),
        ]
        self._arguments = Arguments(
            BackwardFields.values(
                walk=image_loop_values(images, width, forward.eps),
                x=RUNTIME,
                dy=RUNTIME,
                dx=RUNTIME if handed is None else None,
                factors=RUNTIME,
                offsets=RUNTIME,
                mean=forward.mean,
                inverse=forward.inverse,
                factor_gradients=RUNTIME,
                offset_gradients=RUNTIME,
                behind=RUNTIME if behind else None,
                others=PointerArray.of_count(others),
                targets=PointerArray.of_count(targets),
                strides=Numbers.of(strides),
                part_table=None if handed is None else handed.table(width),
            )
        )

    def __call__(
        self,
        images: Sequence[np.ndarray],
        parameters: tuple[np.ndarray, np.ndarray],
        gradients: tuple[np.ndarray, np.ndarray],
        sums: np.ndarray,
        behind: np.ndarray | None = None,
        *,
        others: Sequence[np.ndarray] = (),
        targets: Sequence[np.ndarray] = (),
    ) -> None:
        """Write the gradients.

        Args:
            images: The input, the output's gradient and, unless it is handed on, the input's, which
                may be the same memory.
            parameters: Factors and offsets. Shapes: (C,), (C,).
            gradients: For theirs. Shapes: (C,), (C,).
            sums: Scratch memory of ``forward.sums_size`` elements.
            behind: For the gradient behind the norm, where it is wanted; it may be the memory of
                the output's.
            others: The gradients of other readers, in the order in which they are added.
            targets: Those to whom it is handed on, part by part. They lie beside what is read, or
                are one of the gradients of the output and other readers, and lie alike.
        """
        names = "factors", "offsets", "factor_gradients", "offset_gradients", "walk.sums"
        each = dict(zip(("x", "dy", "dx"), images, strict=False))
        each |= dict(zip(names, (*parameters, *gradients, sums), strict=True))
        each |= dict(zip(self._handed_names, (*others, *targets), strict=True))
        if behind is not None:
            each["behind"] = behind
        for kernel in self._kernels:
            self._arguments.run(kernel, self.forward.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"norm gradient llvm:{self.forward.tuning.instructions}"
