"""Parameter updates: by a kernel of our own, or by oneDNN where none can be made.

The kernel takes all parameters in one pass over memory, to numpy's bits. oneDNN takes a few
primitives over each parameter, on all threads, for the commonest formulas.

Its formulas are those of ``demitasse.training.update_rules``, with their factors multiplied out
first, so the results differ in the last bits from the portable ones. They depend on
the values and the number of elements only, not on threads or layout, so a resumed run continues
exactly. numpy updates small parameters and computes rare formulas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from demitasse.backends.arrays import address, aligned
from demitasse.backends.numpy import updates as numpy_updates
from demitasse.backends.numpy.updates import sumsq
from demitasse.backends.onednn.library.constants import SCALE_OF, Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine, engine
from demitasse.backends.onednn.library.primitive import Primitive, lent_attributes
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined
from demitasse.backends.updates import Piece, Update

if TYPE_CHECKING:
    from demitasse.backends.kernels.fused_optimizer import FusedOptimizer, Parameter
    from demitasse.backends.kernels.tuning import Tuning

__all__ = ["BLOCK", "LEAST", "apply", "sumsq"]

BLOCK = 1 << 21
"""Elements worked on at a time, small enough to be in the last cache when the next primitive reads
them. Much smaller blocks gain nothing, and where another process has one of the cores, each start
of the threads waits for the scheduler, for milliseconds."""

LEAST = 100_000
"""Elements from which on a parameter gains more by oneDNN's threads than their start costs."""

KEPT = 256
"""Parameter sizes that each thread keeps prepared."""

OPERANDS = "wghk"
"""Letters of the arrays: weight, gradient, first and second history."""


class Line(NamedTuple):
    """One primitive: c = f(s a, t b) + keep * c.

    Attributes:
        function: What f is.
        operands: Letters of a, b and c.
        scales: s and t; they may be other ones in every iteration.
        keep: How much of the target is kept; it belongs to the primitive.
        root: Where it is given, c is followed by sqrt(c) + root.
    """

    function: Algorithm
    operands: str
    scales: tuple[float, float] | None = None
    keep: float = 0.0
    root: float | None = None

    @property
    def structure(self) -> Line:
        """The line without the numbers that may change."""
        return self if self.scales is None else self._replace(scales=(0.0, 0.0))


def _gradient(u: Update, factor: float, target: str, keep: float = 0.0) -> Line:
    """Return target = factor * (scale g + decay w) + keep * target."""
    scale = factor * float(u.scale)
    if u.decay and u.kind != "AdamW":
        return Line(Algorithm.ADD, "gw" + target, (scale, factor * u.decay), keep)
    return Line(Algorithm.ADD, "gg" + target, (scale / 2, scale / 2), keep)


SUBTRACT = Line(Algorithm.SUB, "wgw")


def _sgd(u: Update) -> list[Line]:
    h = _gradient(u, u.rate, "h", u.momentum)
    # max(x, x), which is a copy
    return [h, Line(Algorithm.SUB, "whw"), Line(Algorithm.MAX, "hhg")]


def _nesterov(u: Update) -> list[Line]:
    # (1 + m) h - m h_before is m h + r g
    momentum = (u.momentum, 1.0)
    return [
        _gradient(u, u.rate, "g"),
        Line(Algorithm.ADD, "hgh", momentum),
        Line(Algorithm.ADD, "hgg", momentum),
        SUBTRACT,
    ]


def _adam(u: Update) -> list[Line]:
    first = 1 - u.momentum
    lines = [
        Line(Algorithm.MUL, "ggk", (1 - u.decay2, 1.0), u.decay2),
        Line(Algorithm.ADD, "ggh", (first / 2, first / 2), u.momentum),
        Line(Algorithm.MAX, "kkg", root=u.delta),
        Line(Algorithm.DIV, "hgg", (u.rate * u.correction, 1.0)),
    ]
    if u.scale != 1.0 or (u.decay and u.kind == "Adam"):
        lines.insert(0, _gradient(u, 1.0, "g"))
    if u.decay and u.kind == "AdamW":
        lines.append(Line(Algorithm.ADD, "gwg", (1.0, u.rate * u.decay)))
    return [*lines, SUBTRACT]


FORMULAS: dict[str, Callable[[Update], list[Line]]] = {
    "SGD": _sgd,
    "Nesterov": _nesterov,
    "Adam": _adam,
    "AdamW": _adam,
}


class Program:
    """The lines of an update for arrays of one size.

    Args:
        owner: The engine.
        lines: What to run, in order.
        size: Elements of every array.

    Raises:
        Declined: The library has no good primitive for a line.
    """

    def __init__(self, owner: Engine, lines: Sequence[Line], size: int) -> None:
        whole, one = owner.plain((size,)).handle, owner.plain((1,)).handle
        self._steps: list[tuple[Primitive, list[tuple[int, int]], list[np.ndarray]]] = []
        roles = (Arg.SRC, Arg.SECOND_SRC, Arg.DST)
        for line in lines:
            root = line.root
            functions = (
                [] if root is None else [(Algorithm.SQRT, 0, 0), (Algorithm.LINEAR, 1, root)]
            )
            sources = roles[:2] if line.scales else ()
            with lent_attributes(
                owner.library, scales=sources, keep=line.keep, functions=functions
            ) as lent:
                found = owner.describe("binary", line.function, whole, whole, whole, lent)
            scaled = [SCALE_OF + role for role in sources]
            uses = [*((role, whole) for role in roles), *((role, one) for role in scaled)]
            primitive = Primitive(owner.stream, found, uses)
            buffers = [aligned(1) for _ in scaled]
            for role, buffer in zip(scaled, buffers, strict=True):
                primitive.bind(primitive.place(role), buffer)
            letters = zip(roles, line.operands, strict=True)
            places = [(primitive.place(role), OPERANDS.index(letter)) for role, letter in letters]
            self._steps.append((primitive, places, buffers))

    def __call__(self, lines: Sequence[Line], addresses: Sequence[int]) -> None:
        """Run over the arrays at these addresses, in the order of their letters."""
        for line, (primitive, places, buffers) in zip(lines, self._steps, strict=True):
            if line.scales is not None:
                for buffer, scale in zip(buffers, line.scales, strict=True):
                    buffer[0] = scale
            for place, which in places:
                primitive.point(place, addresses[which])
            primitive.run()


def _momentum(u: Update) -> list[float]:
    return [u.rate, u.momentum]


def _averages(u: Update, *kept: float) -> list[float]:
    """Return the rate, the delta, and the shares of running averages."""
    return [u.rate, u.delta, *(share for k in kept for share in (k, 1 - k))]


def _corrected(u: Update) -> list[float]:
    """Return those of Adam, whose averages begin at 0."""
    return [u.rate * u.correction, *_averages(u, u.momentum, u.decay2)[1:]]


NUMBERS: dict[str, Callable[[Update], list[float]]] = {
    "SGD": _momentum,
    "Nesterov": lambda u: [*_momentum(u), 1 + u.momentum],
    "AdaGrad": _averages,
    "RMSProp": lambda u: _averages(u, u.decay2),
    "AdaDelta": lambda u: _averages(u, u.momentum),
    "Adam": _corrected,
    "AdamW": lambda u: [*_corrected(u), u.rate * u.decay],
}
"""Kernel rule and its numbers for an update, where a kernel exists."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.descents: dict[Tuning, FusedOptimizer] = {}
        self.programs: dict[tuple[tuple[Line, ...], int], Program | None] = {}


_own = _OfThread()


def apply(pieces: Sequence[Piece]) -> None:
    """Make all updates of one iteration."""
    pieces, rest = _descended(pieces), []
    known: dict[int, tuple[list[Line], tuple[Line, ...]]] = {}
    for piece in pieces:
        u = piece.update
        able = u.kind in FORMULAS and not u.l1 and piece.data.dtype == np.float32
        if not able or piece.elements < LEAST:
            rest.append(piece)
            continue
        if id(u) not in known:
            lines = FORMULAS[u.kind](u)
            known[id(u)] = lines, tuple(line.structure for line in lines)
        if not _run(piece, *known[id(u)]):
            rest.append(piece)
    if rest:
        numpy_updates.apply(rest)


def _descended(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Make those updates that our kernel makes; return the others."""
    tuning = engine().tuning.as_set(wanted())
    jit_call: list[Piece] = []
    rest: list[Piece] = []
    for piece in pieces:
        (jit_call if tuning.width and _descends(piece) else rest).append(piece)
    if not jit_call:
        return rest
    from demitasse.backends.kernels.fused_optimizer import FusedOptimizer, Parameter

    descent = _own.descents.get(tuning)
    if descent is None:
        descent = _own.descents[tuning] = FusedOptimizer(tuning)
    descent([_parameter(piece, Parameter) for piece in jit_call])
    return rest


def _parameter(piece: Piece, make: type[Parameter]) -> Parameter:
    u = piece.update
    numbers = float(u.scale), u.decay, *NUMBERS[u.kind](u)
    coupled = u.kind != "AdamW"
    rule = u.kind if coupled or u.decay else "Adam"
    decays = coupled and u.decay != 0
    arrays = piece.data, piece.diff, *piece.history
    return make(arrays, rule, decays, numbers)


def _descends(piece: Piece) -> bool:
    u = piece.update
    return u.kind in NUMBERS and not u.l1 and piece.data.dtype == np.float32


def _run(piece: Piece, lines: list[Line], structure: tuple[Line, ...]) -> bool:
    """Make one update; False where there are no good primitives."""
    size = piece.data.shape[0]
    firsts = range(0, size, BLOCK)
    # all of them before the first runs: an update is made whole or not at all
    programs: list[Program] = []
    for first in firsts:
        program = _program(structure, min(BLOCK, size - first))
        if program is None:
            return False
        programs.append(program)
    arrays = (piece.data, piece.diff, *piece.history)
    starts = [address(array) for array in arrays]
    for first, program in zip(firsts, programs, strict=True):
        program(lines, [start + 4 * first for start in starts])
    return True


def _program(structure: tuple[Line, ...], size: int) -> Program | None:
    programs, key = _own.programs, (structure, size)
    if key not in programs:
        if len(programs) >= KEPT:
            programs.clear()
        try:
            programs[key] = Program(engine(), structure, size)
        except Declined:
            programs[key] = None
    return programs[key]
