"""What recurrent layers share: sequences of T steps, computed inside one layer.

Source: Caffe, ``src/caffe/layers/recurrent_layer.cpp``, which builds a net of single steps instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.errors import ErrorCode, NetError, ShapeError
from demitasse.layers.base import (
    AtLeast,
    Between,
    Blobs,
    Exactly,
    Flags,
    Layer,
)
from demitasse.layers.checks import check_row_size, positive, wrong_shapes
from demitasse.layers.saved import Saved

__all__ = ["RecurrentLayer"]


class RecurrentLayer(Layer):
    """Runs N sequences side by side.

    The state that a pass ends with is the one the next pass begins with; cont, 0 where a sequence
    begins and 1 where it goes on, decides whether it is used. Gradients do not cross passes.
    With ``expose_hidden`` states come from the last bottoms and go to the last tops instead; these
    bottoms get no gradient, and the gradients of these tops are not used, as in Caffe.

    Shapes: bottoms x (T, N, ...), cont (T, N)[, static (N, ...)][, states (1, N, H)] -> tops
    (T, N, H)[, states (1, N, H)]. Parameters, G gates together: of x (G * H, D), bias (G * H,)
    [, of static (G * H, S)], of the hidden state (G * H, H); then the subclass's own.

    Raises:
        ConfigError: ``num_output`` is missing or 0.
        ShapeError: The bottoms do not have these shapes, or T changes.
    """

    bottoms = AtLeast(2)
    tops = AtLeast(1)
    gates: ClassVar[int]
    """How many gates there are."""
    states: ClassVar[int]
    """How many blobs a state has; the first is the hidden state."""
    cell: ClassVar[Literal["LSTM", "RNN"] | None] = None
    """What backends call it; None for one that they do not know."""

    def unroll(self, z: Array, cont: Array, states: list[Array]) -> tuple[Array, list[Array]]:
        """Run all steps.

        Args:
            z: What x, bias and static give to the gates. Shape: (T, N, G * H).
            cont: Shape: (T, N, 1).
            states: Each (N, H).

        Returns:
            The output, (T, N, H), and the states at the end.
        """
        raise NotImplementedError

    def unroll_back(self, dy: Array, cont: Array) -> Array:
        """Return the gradient of z, (T, N, G * H); add to those of the subclass's parameters."""
        raise NotImplementedError

    # -- counts and shapes ---------------------------------------------------------------------

    def check_counts(self, bottoms: int, tops: int) -> None:
        exposed = self.states if self.param.recurrent_param.expose_hidden else 0
        for arity, count, word in (
            (Between(2 + exposed, 3 + exposed), bottoms, "bottoms"),
            (Exactly(1 + exposed), tops, "top" if not exposed else "tops"),
        ):
            if count not in arity:
                message = f"{self.type} takes {arity} {word} here, it is given {count}"
                raise NetError(
                    message,
                    code=ErrorCode.COUNT_MISMATCH,
                    blobs=word,
                    got=count,
                    expected=str(arity),
                )

    def allow_force_backward(self, bottom_index: int) -> bool:
        return self.has_gradient(bottom_index) and bottom_index < self.first_state

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del top
        p = self.param.recurrent_param
        self.h = positive(p.num_output, "recurrent_param.num_output")
        self.exposed = p.expose_hidden
        self.has_static = len(bottom) > 2 + (self.states if self.exposed else 0)
        self.first_state = 3 if self.has_static else 2
        self.differentiable = (0, *range(2, len(bottom)))
        self._need_axes(bottom)
        self.t = bottom[0].shape[0]
        rows = self.gates * self.h
        self.d = bottom[0].count_from(2)
        self.add_param((rows, self.d), p.weight_filler)
        self.add_param((rows,), p.bias_filler)
        if self.has_static:
            self.s = bottom[2].count_from(1)
            self.add_param((rows, self.s), p.weight_filler)
        self.add_param((rows, self.h), p.weight_filler)
        self.recurrent_index = self.first_state

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self._need_axes(bottom)
        steps, self.n = bottom[0].shape[:2]
        if steps != self.t:
            message = (
                f"bottom {bottom[0].name!r} has {steps} time steps, expected {self.t} as before"
            )
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                blob=bottom[0].name,
                got=steps,
                expected=self.t,
            )
        check_row_size(bottom[0], 2, self.d, f"the weight {self.blobs[0].shape}")
        if self.has_static:
            check_row_size(bottom[2], 1, self.s, f"the weight {self.blobs[2].shape}")
        for blob in bottom[self.first_state :]:
            if blob.shape != (1, self.n, self.h):
                raise wrong_shapes(self.type, f"states {(1, self.n, self.h)}", blob)
        top[0].reshape((self.t, self.n, self.h))
        for blob in top[1:]:
            blob.reshape((1, self.n, self.h))
        if self.cell is not None:
            self.op = ops.Recurrent(
                dtype=self.dtype,
                cell=self.cell,
                steps=self.t,
                rows=self.n,
                k=self.d,
                m=self.h,
                static=self.has_static,
                exposed=self.exposed,
            )

    def _need_axes(self, bottom: Blobs) -> None:
        x, cont = bottom[0].shape, bottom[1].shape
        if len(x) < 3 or cont != x[:2]:
            raise wrong_shapes(self.type, "x (T, N, ...) and cont (T, N)", *bottom[:2])
        if self.has_static and (bottom[2].num_axes < 2 or bottom[2].shape[0] != x[1]):
            expected = f"a static input (N, ...) with a row for each of the {x[1]} sequences"
            raise wrong_shapes(self.type, expected, bottom[2])

    # -- passes --------------------------------------------------------------------------------

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        y, states = self.unroll(self._inputs(bottom), self._cont(bottom), self._begin(bottom))
        top[0].write(y)
        kept = top[1:] if self.exposed else self._carried()
        for blob, state in zip(kept, states, strict=True):
            blob.write(xp.reshape(state, blob.shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, many = self.xp, self.t * self.n
        rows = self.gates * self.h
        dz = self.unroll_back(top[0].read_diff(), self._cont(bottom))  # (T, N, rows)
        flat = xp.reshape(dz, (many, rows))
        if self.param_propagate_down(0):
            x = xp.reshape(bottom[0].read(), (many, self.d))
            self.blobs[0].add_diff(xp.matmul(flat.T, x))
        if self.param_propagate_down(1):
            self.blobs[1].add_diff(xp.sum(flat, axis=0))
        if self.param_propagate_down(self.recurrent_index):
            before = xp.reshape(self.steps("before").read(), (many, self.h))
            self.blobs[self.recurrent_index].add_diff(xp.matmul(flat.T, before))
        if propagate_down[0]:
            dx = xp.matmul(flat, self.blobs[0].read())
            bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))
        if self.has_static:
            self._static_back(xp.sum(dz, axis=0), propagate_down[2], bottom[2])
        for blob, wanted in zip(
            bottom[self.first_state :], propagate_down[self.first_state :], strict=True
        ):
            if wanted:
                blob.set_diff(0)

    def _static_back(self, total: Array, wanted: bool, static: Blob) -> None:
        xp = self.xp
        if self.param_propagate_down(2):
            rows = xp.reshape(static.read(), (self.n, self.s))
            self.blobs[2].add_diff(xp.matmul(total.T, rows))
        if wanted:
            ds = xp.matmul(total, self.blobs[2].read())
            static.write_diff(xp.reshape(ds, static.shape))

    def steps(self, name: str, parts: int = 1) -> Saved:
        """Return state of all steps for backward: (T, N, parts * H).

        ``before`` is each step's hidden state before it, times cont; ``unroll`` writes it.
        """
        return self.saved(name, (self.t, self.n, parts * self.h))

    def carried(self) -> Sequence[Blob]:
        """Return the states that the next pass begins with, where there was a pass."""
        names = [] if self.exposed else [f"state {i}" for i in range(self.states)]
        return [self._saved[name].blob for name in names if name in self._saved]

    def _inputs(self, bottom: Blobs) -> Array:
        """Return what x, bias and static give to the gates. Shape: (T, N, G * H)."""
        xp, rows = self.xp, self.gates * self.h
        x = xp.reshape(bottom[0].read(), (self.t * self.n, self.d))
        z = xp.matmul(x, self.blobs[0].read().T) + self.blobs[1].read()
        z = xp.reshape(z, (self.t, self.n, rows))
        if self.has_static:
            static = xp.reshape(bottom[2].read(), (self.n, self.s))
            z = z + xp.matmul(static, self.blobs[2].read().T)
        return z

    def _cont(self, bottom: Blobs) -> Array:
        return self.xp.reshape(bottom[1].read(), (self.t, self.n, 1))

    def _begin(self, bottom: Blobs) -> list[Array]:
        blobs = bottom[self.first_state :] if self.exposed else self._carried()
        return [self.xp.reshape(blob.read(), (self.n, self.h)) for blob in blobs]

    def _carried(self) -> list[Blob]:
        """Return the blobs that carry the states from pass to pass."""
        return [self.saved(f"state {i}", (self.n, self.h)).blob for i in range(self.states)]
