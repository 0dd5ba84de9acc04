"""What can be said of a layer type: the kinds of facts in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from demitasse.core.frozen_struct import FrozenStruct
from demitasse.io.proto import LayerParameter

__all__ = [
    "ALWAYS",
    "IN_PLACE",
    "NEVER",
    "Better",
    "Gradient",
    "Holds",
    "Judge",
    "LayerFacts",
    "Moves",
    "ParamFacts",
    "Read",
    "Role",
    "When",
    "field_of",
    "given",
    "phase_is",
    "unless",
]

Better = Literal["", "larger", "smaller"]
Gradient = Literal["gradient", "source", "none"]
Holds = Literal["classes", "indices", "marks", "objects", "priors", "regions", "selector"]
Judge = Literal["Caffe", "OpenCV", "definition", ""]
Moves = Literal["all", "part", "tops", "nothing"]
Read = Literal["bottoms", "tops", "first top", "second top", "signs", "params"]
Role = Literal["weight", "bias", "scale", "value", "average"]


class When(FrozenStruct):
    """A condition on a layer's message and its phase.

    Attributes:
        text: As a page says it.
        holds: Whether it holds, for a message and "TRAIN" or "TEST".
    """

    text: str
    holds: Callable[[LayerParameter, str], bool]

    def __and__(self, other: When) -> When:
        return When(
            f"{self.text}, {other.text}",
            lambda param, phase: self.holds(param, phase) and other.holds(param, phase),
        )


ALWAYS = When("always", lambda param, phase: True)
NEVER = When("never", lambda param, phase: False)
IN_PLACE = When("in place", lambda param, phase: any(top in param.bottom for top in param.top))


def unless(when: When) -> When:
    """Return the condition that another does not hold."""
    return When(f"not {when.text}", lambda param, phase: not when.holds(param, phase))


def phase_is(wanted: str) -> When:
    """Return the condition that a layer is in a phase."""
    return When(f"in phase {wanted}", lambda param, phase: phase == wanted)


def field_of(param: LayerParameter, path: str) -> Any:
    """Return the value of a field of a message in a layer's, e.g. "convolution_param.axis"."""
    message, _, name = path.partition(".")
    return getattr(getattr(param, message), name)


def given(param: LayerParameter, path: str) -> bool:
    """Whether such a field is given; one that may be given several times, whether it is once."""
    message, _, name = path.partition(".")
    return any(known.name == name for known, _ in getattr(param, message).ListFields())


class ParamFacts(FrozenStruct):
    """One parameter of a layer.

    Attributes:
        name: What it is called.
        role: "weight": connects values, and all its units are the same while it is 0; "bias" is
            added, "scale" multiplies, "value" is used as it is. An "average" is computed by forward
            and never learned.
        filler: The field that says what it begins with, or empty.
        when: When there is one.
    """

    name: str
    role: Role
    filler: str = ""
    when: When = ALWAYS


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """What is said of a layer type besides what its class says.

    Attributes:
        family: Under which heading of the reference it stands.
        fields: The messages of a LayerParameter that it reads, or single fields of them.
        aliases: Further types of the same class.
        op: Name of the operation a backend may lower, or of the function of an Activation; or
            empty.
        gradient: Whether a gradient passes ("gradient"), starts here ("source": it has no bottoms)
            or ends here ("none").
        judge: Whose recorded outputs it was compared with; "definition": values of its formula,
            computed with 50 digits; empty: nobody's.
        host: Whether its work is done on the host, on every device.
        params: Its parameters, in order.
        reads: What its own backward reads of its blobs, and when. "signs" are tops of which only
            those above 0 matter. A backend's Step may read more.
        same_shape: Whether its first top always has the shape of its first bottom.
        keeps_signs: When, in place, what was above 0 still is, or gets no gradient, and all else
            is not.
        shares: When its tops are its bottom's memory.
        better: Whether more of its first top is better, if that is known: of a loss it is less.
        result: Whether its tops are for whoever runs the net, so that no layer need read them.
        contains: Types of layers that its computation begins with.
        holds: What is in bottoms that are no plain values: "classes", one for each place of the
            scores in bottom 0, "indices", "marks" of where sequences go on, "objects" of images
            and the "priors" that find them, "regions", or a "selector" of items. Such bottoms have
            no gradient. -1 is the last bottom.
        num_output: The field with the number of channels of its tops, which are on the axis that
            the message's ``axis`` names.
        source: The field that names a file it reads.
        records: Whether it reads records, one batch after the other.
        opaque: Whether it may keep its blobs' memories, or change others than its tops'.
        per_value: Multiplications, each with an addition, for each value of its first top, where
            no operation knows them.
        moves: What forward reads and writes: "all", as much of its bottoms and parameters as it
            writes ("part"), its "tops", or "nothing".
        known: Whether what is not said here is not so; False for types that nobody has described,
            and where a user's module decides.
    """

    family: str = ""
    fields: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    op: str = ""
    gradient: Gradient = "gradient"
    judge: Judge = ""
    host: bool = False
    params: tuple[ParamFacts, ...] = ()
    reads: Mapping[Read, When] = field(default_factory=dict)
    same_shape: bool = False
    keeps_signs: When = NEVER
    shares: When = NEVER
    better: Better = ""
    result: bool = False
    contains: tuple[str, ...] = ()
    holds: Mapping[int, Holds] = field(default_factory=dict)
    num_output: str = ""
    source: str = ""
    records: bool = False
    opaque: bool = False
    per_value: Callable[[LayerParameter, str], int] | None = None
    moves: Moves = "all"
    known: bool = True

    @property
    def is_loss(self) -> bool:
        """Whether its first top counts as a loss unless its ``loss_weight`` says otherwise."""
        return self.better == "smaller"

    def params_of(self, param: LayerParameter, phase: str) -> list[ParamFacts]:
        """Return the parameters that a layer has, in order."""
        return [one for one in self.params if one.when.holds(param, phase)]

    def backward_reads(self, param: LayerParameter, phase: str) -> frozenset[Read]:
        """Return what a layer's backward reads, where all its gradients are wanted."""
        return frozenset(what for what, when in self.reads.items() if when.holds(param, phase))

    def kinds_of_bottoms(self, count: int) -> Iterator[Holds | None]:
        """Yield what each of ``count`` bottoms holds; None for plain values."""
        for index in range(count):
            yield self.holds.get(index, self.holds.get(index - count))
