"""Metadata of a layer type: conditions, parameters, and what its passes read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from demitasse.core.deprecated import renamed_arguments
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.io.proto import LayerParameter

Better = Literal["", "larger", "smaller"]
Gradient = Literal["gradient", "source", "none"]
BottomKind = Literal["classes", "indices", "marks", "objects", "priors", "regions", "selector"]
Reference = Literal["Caffe", "OpenCV", "definition", ""]
Moves = Literal["all", "part", "tops", "nothing"]
Read = Literal[
    "bottoms", "tops", "first top", "second top", "tops with gradient", "signs", "params"
]  # fmt: skip
Role = Literal["weight", "bias", "scale", "value", "average"]


class Condition(FrozenStruct):
    """Condition on a layer's message and its phase.

    Attributes:
        text: Words for the reference page.
        is_met: Function of a message and "TRAIN" or "TEST" that returns True if it is met.
    """

    text: str
    is_met: Callable[[LayerParameter, str], bool]

    def __and__(self, other: Condition) -> Condition:
        return Condition(
            f"{self.text}, {other.text}",
            lambda param, phase: self.is_met(param, phase) and other.is_met(param, phase),
        )


ALWAYS = Condition("always", lambda param, phase: True)
NEVER = Condition("never", lambda param, phase: False)
IN_PLACE = Condition("in place", lambda param, phase: any(top in param.bottom for top in param.top))


def unless(condition: Condition) -> Condition:
    """Return the negation of a condition."""
    return Condition(
        f"not {condition.text}", lambda param, phase: not condition.is_met(param, phase)
    )


def field_value(param: LayerParameter, path: str) -> Any:
    """Return the value of a field by its path, e.g. "convolution_param.axis"."""
    message, _, name = path.partition(".")
    return getattr(getattr(param, message), name)


def has_field(param: LayerParameter, path: str) -> bool:
    """Return True if a field is given, a repeated field at least once."""
    message, _, name = path.partition(".")
    return any(known.name == name for known, _ in getattr(param, message).ListFields())


class ParamMetadata(FrozenStruct):
    """One parameter of a layer.

    Attributes:
        name: Name on the reference page.
        role: "weight": connects values, and all its units are the same while it is 0; "bias" is
            added, "scale" multiplies, "value" is used as it is. An "average" is computed by forward
            and never learned.
        filler: Field with the filler of the initial values, or empty.
        condition: Condition under which the layer has the parameter.
    """

    name: str
    role: Role
    filler: str = ""
    condition: Condition = ALWAYS


@dataclass(frozen=True, kw_only=True)
class LayerMetadata:
    """Properties of a layer type that its class does not state.

    Attributes:
        family: Heading of the reference.
        fields: Messages of LayerParameter that the layer reads, or single fields of them.
        aliases: Further types of the same class.
        op: Name of the operation that a backend may lower, or of the function of an Activation; or
            empty.
        gradient: "gradient" passes, "source" has no bottoms, "none" ends the gradient.
        reference: Origin of the recorded outputs in the tests: "Caffe" or "OpenCV"; "definition":
            values of the formula, computed with 50 digits; empty: none.
        host: True if the work is done on the host, on every device.
        params: Parameters, in order.
        backward_inputs: Blobs that the layer's own backward reads, and the condition. "signs" are
            tops of which only the sign matters; values of "tops with gradient" do not matter where
            the gradient is 0. A backend's Step may read more.
        same_shape: True if the first top always has the shape of the first bottom.
        preserves_sign: Condition under which, in place, values above 0 stay above 0 or get no
            gradient, and all others do not become positive.
        stops_gradient: Condition under which values that change get no gradient.
        shares: Condition under which the tops share the bottom's memory.
        better: "larger" for a first top that is a score, "smaller" for a loss; empty if unknown.
        result: True if the tops are for the caller, so that no layer need read them.
        contains: Types of layers that the computation begins with.
        bottom_kinds: Meaning of bottoms that are no plain values: "classes", one for each position
            of the scores in bottom 0, "indices", "marks" where sequences continue, "objects" of
            images and the "priors" of a detector, "regions", or a "selector" of items. These
            bottoms have no gradient. -1 is the last bottom.
        num_output: Field with the number of channels of the tops, on the message's ``axis``.
        source: Field that names a file to read.
        records: True if the layer reads records, one batch after the other.
        opaque: True if the layer may keep its blobs' memories, or change others than its tops'.
        macs_per_output: Multiply-adds for each value of the first top, where no operation counts
            them.
        moves: Memory traffic of forward: "all", as much of bottoms and parameters as it writes
            ("part"), its "tops", or "nothing".
        known: False for types without metadata, and where a user's module decides.
    """

    family: str = ""
    fields: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    op: str = ""
    gradient: Gradient = "gradient"
    reference: Reference = ""
    host: bool = False
    params: tuple[ParamMetadata, ...] = ()
    backward_inputs: Mapping[Read, Condition] = field(default_factory=dict)
    same_shape: bool = False
    preserves_sign: Condition = NEVER
    stops_gradient: Condition = NEVER
    shares: Condition = NEVER
    better: Better = ""
    result: bool = False
    contains: tuple[str, ...] = ()
    bottom_kinds: Mapping[int, BottomKind] = field(default_factory=dict)
    num_output: str = ""
    source: str = ""
    records: bool = False
    opaque: bool = False
    macs_per_output: Callable[[LayerParameter, str], int] | None = None
    moves: Moves = "all"
    known: bool = True

    @property
    def is_loss(self) -> bool:
        """True if the first top is a loss, unless its ``loss_weight`` is 0."""
        return self.better == "smaller"

    def params_of(self, param: LayerParameter, phase: str) -> list[ParamMetadata]:
        """Return the parameters of a layer with this message, in order."""
        return [one for one in self.params if one.condition.is_met(param, phase)]

    def reads_in_backward(self, param: LayerParameter, phase: str) -> frozenset[Read]:
        """Return the blobs that backward reads if all gradients are wanted."""
        return frozenset(
            what for what, when in self.backward_inputs.items() if when.is_met(param, phase)
        )

    def kinds_of_bottoms(self, count: int) -> Iterator[BottomKind | None]:
        """Yield the kind of each of ``count`` bottoms; None for plain values."""
        for index in range(count):
            yield self.bottom_kinds.get(index, self.bottom_kinds.get(index - count))


LayerMetadata.__init__ = renamed_arguments(  # type: ignore[method-assign]
    judge="reference",
    reads="backward_inputs",
    keeps_signs="preserves_sign",
    holds="bottom_kinds",
    per_value="macs_per_output",
)(LayerMetadata.__init__)


# -- conditions --------------------------------------------------------------------------------

ELSEWHERE = unless(IN_PLACE)
ONE_BOTTOM = Condition("with one bottom", lambda param, phase: len(param.bottom) <= 1)


def flag(path: str) -> Condition:
    """Return the condition that a field is true, e.g. "eltwise_param.stable_prod_grad"."""
    name = path.partition(".")[2]
    return Condition(f"with `{name}`", lambda param, phase: field_value(param, path))


# -- what backward reads -----------------------------------------------------------------------

BOTTOMS: Mapping[Read, Condition] = {"bottoms": ALWAYS}
TOPS_WITH_GRADIENT: Mapping[Read, Condition] = {"tops with gradient": ALWAYS}
BOTH: Mapping[Read, Condition] = {**BOTTOMS, **TOPS_WITH_GRADIENT}
WEIGHED: Mapping[Read, Condition] = {"bottoms": ALWAYS, "params": ALWAYS}

# -- parameters and work -----------------------------------------------------------------------


def product_params(message: str) -> tuple[ParamMetadata, ...]:
    """Return a weight and, with ``bias_term``, a bias."""
    return (
        ParamMetadata("weight", "weight", f"{message}.weight_filler"),
        ParamMetadata("bias", "bias", f"{message}.bias_filler", flag(f"{message}.bias_term")),
    )


def constant(count: int) -> Callable[[LayerParameter, str], int]:
    """Return a constant ``macs_per_output``."""
    return lambda param, phase: count
