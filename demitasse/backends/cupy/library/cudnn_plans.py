"""Choice of cuDNN's engine for a convolution, cached on disk.

What is kept is a plan's name, its engine and the values of its knobs, as text. cuDNN builds the
plan anew and checks them in doing so: no machine code of a file is ever run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.cupy.library.cudnn_graphs import graph_of
from demitasse.backends.kept import read_code, write_code
from demitasse.backends.step import Declined

__all__ = ["Choice", "Plans", "Rules"]

MOST_TIMED = 8
"""Greatest number of plans to time, in cuDNN's order of recommendation."""

Clock = Callable[[Any, Convolution], float]
"""Returns the time that a built graph takes to compute a convolution."""


@dataclass(frozen=True)
class Rules:
    """Options of plans.

    Attributes:
        tf32: Whether float32 may be rounded to TF32 on the way.
        narrow: Whether values are kept in 16 bits: products of them are exact in float32 by tensor
            cores, too, which are then free to use.
        deterministic: Whether results must be the same bits in every run.
        most_workspace: Scratch memory that one may use, in bytes.
        timed: Whether the fastest of several is taken, or what cuDNN recommends.
    """

    tf32: bool
    deterministic: bool
    most_workspace: int
    timed: bool
    narrow: bool = False

    def notes(self, cudnn: ModuleType) -> list[Any]:
        """Return the frontend's notes of plans that these rules exclude."""
        note = cudnn.numerical_note
        rounding = [note.DOWN_CONVERT_INPUTS, note.REDUCED_PRECISION_REDUCTION]
        if not self.narrow:
            rounding = [note.TENSOR_CORE, *rounding] * (not self.tf32)
        return rounding + [note.NONDETERMINISTIC] * self.deterministic


@dataclass(frozen=True)
class Choice:
    """A plan.

    Attributes:
        name: What cuDNN calls it: ``"eng28_k2=4_k3=0"``.
        engine: The number of its engine.
        knobs: The engine's knobs, by name; None where the frontend has no name for one of them.
    """

    name: str
    engine: int
    knobs: Mapping[str, int] | None

    @classmethod
    def of(cls, cudnn: ModuleType, graph: Any, index: int) -> Choice:
        """Return one of a graph's plans."""
        engine, found = graph.get_engine_and_knobs_at_index(index)
        knobs = {knob.name: int(value) for knob, value in found.items()}
        unnamed = cudnn.knob_type.NOT_SET in found
        return cls(graph.get_plan_name_at_index(index), engine, None if unnamed else knobs)

    def text(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, text: bytes) -> Choice | None:
        """Return what a text says, or None where it says something else."""
        try:
            found = json.loads(text)
            name, engine, knobs = (found[key] for key in ("name", "engine", "knobs"))
            numbers = [engine, *(() if knobs is None else knobs.values())]
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return None
        right = isinstance(name, str) and all(type(n) is int for n in numbers)
        return cls(name, engine, knobs) if right else None


class Plans:
    """Graphs with a plan, for one GPU.

    Args:
        cudnn: The frontend.
        properties: Its properties of the GPU.
        clock: What times a plan.
    """

    def __init__(self, cudnn: ModuleType, properties: Any, clock: Clock) -> None:
        self._cudnn, self._properties, self._clock = cudnn, properties, clock
        versions = f"{cudnn.__version__} {cudnn.backend_version()}"
        self._place = f"{versions} {properties.serialize()}"
        self._choices: dict[str, Choice] = {}
        self._refusals = (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError)

    def graph(self, convolution: Convolution, rules: Rules) -> tuple[Any, Choice]:
        """Return a graph ready to be executed, and what was chosen for it.

        Raises:
            Declined: No plan of cuDNN's keeps the rules.
        """
        name = self.name(convolution, rules)
        choice = self._choices.get(name)
        if choice is None and (text := read_code(name)) is not None:
            choice = Choice.read(text)
        if choice is not None and (graph := self._again(convolution, rules, choice)) is not None:
            self._choices[name] = choice
            return graph, choice
        graph, choice = self._chosen(convolution, rules)
        self._choices[name] = choice
        write_code(name, choice.text())
        return graph, choice

    def name(self, convolution: Convolution, rules: Rules) -> str:
        """Return what a choice is kept under: a digest of all that it depends on."""
        about = [self._place, asdict(convolution), asdict(rules)]
        return f"cudnn-{hashlib.sha256(json.dumps(about).encode()).hexdigest()}.json"

    def _again(self, convolution: Convolution, rules: Rules, choice: Choice) -> Any | None:
        """Return a graph with a plan that was chosen before, or None where it can not be built."""
        cudnn = self._cudnn
        try:
            graph = graph_of(cudnn, convolution, self._properties)
            if choice.knobs is None:
                graph.create_execution_plans(self._modes(convolution))
            else:
                knobs = {getattr(cudnn.knob_type, knob): n for knob, n in choice.knobs.items()}
                graph.create_execution_plan(choice.engine, knobs)
            self._restrict(graph, rules)
            count = graph.get_execution_plan_count()
            names = [graph.get_plan_name_at_index(index) for index in range(count)]
            graph.build_plan_at_index(names.index(choice.name))
        except (*self._refusals, AttributeError, OverflowError):
            return None
        return graph if graph.get_workspace_size() <= rules.most_workspace else None

    def _chosen(self, convolution: Convolution, rules: Rules) -> tuple[Any, Choice]:
        """Return a graph with the first plan that cuDNN recommends, or the fastest one."""
        try:
            graph = graph_of(self._cudnn, convolution, self._properties)
            graph.create_execution_plans(self._modes(convolution))
            self._restrict(graph, rules)
            best = self._best(graph, convolution, rules)
        except self._refusals as error:
            message = f"cuDNN has no plan for it ({_first_line(error)})"
            raise Declined(message) from error
        if best is None:
            rounding = "" if rules.tf32 else " without TF32"
            repeatable = ", the same bits in every run" if rules.deterministic else ""
            message = (
                f"no plan of cuDNN's{rounding}{repeatable} and with a workspace of at most "
                f"{rules.most_workspace} bytes"
            )
            raise Declined(message)
        graph.build_plan_at_index(best)
        return graph, Choice.of(self._cudnn, graph, best)

    def _modes(self, convolution: Convolution) -> list[Any]:
        """Return which of its heuristics cuDNN is asked.

        What follows a convolution can as well be computed by a kernel of ours. So plans with it are
        taken where the heuristics recommend them for their speed, not where they merely work.
        """
        mode = self._cudnn.heur_mode
        return [mode.A] if convolution.bias or convolution.relu else [mode.A, mode.FALLBACK]

    def _best(self, graph: Any, convolution: Convolution, rules: Rules) -> int | None:
        """Return the index of the plan to take, or None where there is none."""
        working = self._working(graph, rules)
        if not rules.timed:
            return next(working, None)
        times: dict[int, float] = {}
        for index in working:
            times[index] = self._clock(graph, convolution)
            if len(times) == MOST_TIMED:
                break
        return min(times, key=times.__getitem__, default=None)

    def _working(self, graph: Any, rules: Rules) -> Iterator[int]:
        """Yield the indices of the plans that can be built, each one built."""
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except self._refusals:
                continue
            if graph.get_workspace_size_plan_at_index(index) <= rules.most_workspace:
                yield index

    def _restrict(self, graph: Any, rules: Rules) -> None:
        notes = rules.notes(self._cudnn)
        if notes:
            graph.deselect_numeric_notes(notes)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
