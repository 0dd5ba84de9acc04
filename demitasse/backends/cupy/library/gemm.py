"""Descriptions of matrix products, apart from the library that computes them.

Arrays are row-major, as all of ours are; cuBLAS is column-major. A row-major matrix is its own
transpose in column-major order, so C = A B is asked for as C' = B' A'.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ColumnMajor", "Product"]


@dataclass(frozen=True)
class ColumnMajor:
    """The arguments of a column-major product: out (m, n) = op(first) (m, k) op(second) (k, n)."""

    first_transposed: bool
    second_transposed: bool
    m: int
    n: int
    k: int
    first_stride: int
    second_stride: int
    out_stride: int


@dataclass(frozen=True)
class Product:
    """out = a b, or out += a b; several at once, each ``step`` elements after the one before.

    Shapes: a (m, k), or (k, m) with ``transpose_a``; b (k, n), or (n, k) with ``transpose_b``;
    out (m, n); a leading axis of ``batch`` in front of each, where a step of 0 repeats an operand.

    Attributes:
        dtype: Of all matrices, "float32" or "float64"; or "half" or "bfloat16", which are added up
            in float32.
        accumulate: Add to ``out`` rather than overwrite it.
    """

    dtype: str
    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    accumulate: bool = False
    batch: int = 1
    step_a: int | None = None
    step_b: int | None = None

    @property
    def empty(self) -> bool:
        """True if there is nothing to compute."""
        return not (self.m and self.n and self.batch)

    @property
    def steps(self) -> tuple[int, int, int]:
        """Elements from one a, b and out to the next; those of dense arrays by default."""
        step_a = self.m * self.k if self.step_a is None else self.step_a
        step_b = self.k * self.n if self.step_b is None else self.step_b
        return step_a, step_b, self.m * self.n

    def column_major(self) -> ColumnMajor:
        """Return the same product for a column-major library: ``first`` is b, ``second`` is a."""
        return ColumnMajor(
            first_transposed=self.transpose_b,
            second_transposed=self.transpose_a,
            m=self.n,
            n=self.m,
            k=self.k,
            first_stride=max(1, self.k if self.transpose_b else self.n),
            second_stride=max(1, self.m if self.transpose_a else self.k),
            out_stride=max(1, self.n),
        )
