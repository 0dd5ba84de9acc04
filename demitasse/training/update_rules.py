"""Update rules of the solvers: a formula with weight decay, and what its fields may be.

The rules are array API code for every backend.

Source: Caffe, ``src/caffe/solvers/*_solver.cpp``; AdamW is Loshchilov and Hutter's, "Decoupled
weight decay regularization"; LARS You, Gitman and Ginsburg's, "Large batch training of
convolutional networks"; LAMB You and others', "Large batch optimization for deep learning".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal

from demitasse.backends.arrays import Array
from demitasse.backends.updates import FORMULAS, Piece, Update, UpdateFormula
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter


@dataclass(frozen=True)
class UpdateRule:
    """Update rule of one type of solver.

    With ``trusts`` each parameter has a learning rate of its own: the norm of its weights over the
    norm of its "gradient", decay included, or of its "step". Parameters with at most one axis
    longer than 1, as biases and scales of a normalization, use the common rate.
    """

    type: str  # name in solver files
    formula: UpdateFormula
    averages: tuple[str, ...] = ()  # fields that are decay rates: at least 0 and below 1
    squares: str = "momentum2"  # field with the decay rate of averages of squares
    takes_momentum: bool = True
    takes_l1: bool = True  # weights may decay by their absolute value
    corrected: bool = False  # averages are corrected for their start at 0
    decoupled: bool = False  # the weight decay is decoupled from the averages
    trusts: Literal["", "gradient", "step"] = ""
    coasts: bool = False  # momentum still moves a parameter whose ``lr_mult`` is 0


ADAM = UpdateRule("Adam", FORMULAS["Adam"], averages=("momentum", "momentum2"), corrected=True)

RULES = {
    rule.type: rule
    for rule in (
        UpdateRule("SGD", FORMULAS["SGD"], coasts=True),
        UpdateRule("Nesterov", FORMULAS["Nesterov"], coasts=True),
        UpdateRule("AdaGrad", FORMULAS["AdaGrad"], takes_momentum=False),
        UpdateRule(
            "RMSProp", FORMULAS["RMSProp"], averages=("rms_decay",), squares="rms_decay",
            takes_momentum=False,
        ),
        UpdateRule("AdaDelta", FORMULAS["AdaDelta"], averages=("momentum",)),
        ADAM,
        replace(ADAM, type="AdamW", decoupled=True, takes_l1=False),
        UpdateRule("LARS", FORMULAS["SGD"], takes_l1=False, trusts="gradient", coasts=True),
        replace(ADAM, type="LAMB", decoupled=True, takes_l1=False, trusts="step"),
    )
}  # fmt: skip
"""The rules by the ``type`` in solver files."""


def find_rule(type_: str) -> UpdateRule:
    """Return the rule of a type of solver.

    Raises:
        ConfigError: The type is unknown; names the known types.
    """
    if type_ not in RULES:
        message = (
            f"unknown solver type {type_!r}{suggestion(type_, RULES)}; known types are "
            f"{', '.join(RULES)}"
        )
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="type", got=type_)
    return RULES[type_]


def apply(xp: Any, piece: Piece) -> None:
    """Make one update: overwrite the history, the gradient and the weights.

    Shapes: all of ``piece`` (n,).
    """
    u, w = piece.update, piece.data[...]
    g, rule = piece.diff[...] * u.scale, RULES[u.kind]
    raw = g
    if u.decay and not rule.decoupled:
        g = g + u.decay * (xp.sign(w) if u.l1 else w)
    if u.trust and rule.trusts == "gradient":
        length = _norm(xp, w)
        g = g * _trust(xp, u.trust, length, _norm(xp, raw) + u.decay * length)
    kept = [array[...] for array in piece.history]
    value, *history = rule.formula.change(xp.sqrt, rule.formula.coefficients(u), g, kept)
    if u.decay and rule.decoupled:
        value = value + (u.rate * u.decay) * w
    if u.trust and rule.trusts == "step":
        value = value * _trust(xp, u.trust * u.rate, _norm(xp, w), _norm(xp, value))
    arrays = (*piece.history, piece.diff, piece.data)
    for array, new in zip(arrays, (*history, value, w - value), strict=True):
        array[...] = new if u.guard is None else xp.where(xp.isfinite(u.guard), new, array[...])


def _norm(xp: Any, array: Array) -> Array:
    """Return the L2 norm as a 0-d array. Shape: (n,) -> ()."""
    return xp.sqrt(xp.sum(array * array))


def _trust(xp: Any, coefficient: float, weights: Array, change: Array) -> Array:
    """Return the factor of a layer's rate; 1 if the weights or the change are 0.

    Shapes: ``weights`` and ``change``, two norms, () -> ().
    """
    one = xp.ones_like(change)
    known = (weights > 0) & (change > 0)  # False for NaN
    return xp.where(known, coefficient * weights / xp.where(known, change, one), one)


def sumsq(xp: Any, diffs: Sequence[Array]) -> Array:
    """Return the sum of the squares of all elements as a 0-d array.

    Shapes: each (n,) -> ().
    """
    return reduce(add, (xp.sum(diff * diff) for diff in diffs))


def clip_scale(xp: Any, total: Array, limit: float) -> Array:
    """Return the factor of a gradient that limits its L2 norm to ``limit``.

    Shapes: ``total``, the sum of its squares, () -> ().
    """
    norm = xp.sqrt(total)
    one = xp.ones_like(norm)
    above = norm > limit  # False for NaN
    return xp.where(above, limit / xp.where(above, norm, one), one)


def scaled(
    update: Update, lr_mult: float, decay_mult: float, axes: int, scale: float | Array
) -> Update:
    """Return the coefficients of a parameter from those for multipliers of 1.

    Args:
        update: Coefficients for multipliers of 1.
        lr_mult: Multiplier of the rate.
        decay_mult: Multiplier of the decay.
        axes: Number of axes of the parameter that are longer than 1.
        scale: Factor of the raw gradient.
    """
    rate, decay = update.rate * lr_mult, update.decay * decay_mult
    trust = update.trust if axes > 1 else 0.0
    return replace(update, rate=rate, decay=decay, trust=trust, scale=scale)


def numbers(param: SolverParameter, rule: UpdateRule, rate: float, iteration: int) -> Update:
    """Return the coefficients of an update for multipliers of 1, after so many updates."""
    beta1, beta2 = param.momentum, param.momentum2
    time = iteration + 1
    return Update(
        rule.type, rate=rate, decay=param.weight_decay, l1=param.regularization_type == "L1",
        momentum=beta1, decay2=getattr(param, rule.squares), delta=param.delta,
        correction=math.sqrt(1 - beta2**time) / (1 - beta1**time) if rule.corrected else 1.0,
        trust={"": 0.0, "gradient": param.trust_coefficient, "step": 1.0}[rule.trusts],
    )  # fmt: skip


def check_update(param: SolverParameter, rule: UpdateRule) -> None:
    """Check the fields that a solver's rule uses.

    Raises:
        ConfigError: Names the field and its possible values.
    """

    def fault(code: ErrorCode, expected: str, *fields: str) -> ConfigError:
        got = getattr(param, fields[0])
        text = f"{got:g}" if isinstance(got, float) else repr(got)
        message = f"got {fields[0]} {text} for {rule.type}, expected {expected}"
        return ConfigError(message, fields=fields, code=code, field=fields[0], got=got)

    if param.momentum and not rule.takes_momentum:
        raise fault(ErrorCode.UNSUPPORTED, "none; remove the field", "momentum")
    for name in rule.averages:
        if not 0 <= getattr(param, name) < 1:
            raise fault(ErrorCode.OUT_OF_RANGE, "at least 0 and below 1", name)
    if rule.trusts == "gradient" and not param.trust_coefficient > 0:
        raise fault(ErrorCode.OUT_OF_RANGE, "a value above 0", "trust_coefficient")
    known = ["L2", "L1"] if rule.takes_l1 else ["L2"]
    if param.weight_decay and param.regularization_type not in known:
        raise fault(ErrorCode.UNKNOWN, " or ".join(known), "regularization_type", "weight_decay")
