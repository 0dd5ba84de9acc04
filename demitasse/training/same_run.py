"""Whether the run that goes on from a state is the one that wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from demitasse.core.axes import shape_string
from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, ErrorCode, SnapshotError
from demitasse.io.proto import RunFacts
from demitasse.training.run_facts import file_digest
from demitasse.training.state_file import State

__all__ = ["Difference", "check_same_run", "differences"]

log = get_logger(__name__)

Fact = RunFacts.Fact


@dataclass(frozen=True)
class Difference:
    """Something in which a run is not the one that a state is of.

    Attributes:
        key: The field, layer or part of the run.
        text: What it was, and what it is.
        wrong: Whether it can hardly be meant.
        bits: Whether numbers come out otherwise than in a run that never stopped.
    """

    key: str
    text: str
    wrong: bool = False
    bits: bool = True


def check_same_run(
    state: State,
    now: RunFacts,
    seed: int,
    path: Path,
    *,
    force: bool = False,
    exact: bool = False,
) -> None:
    """Warn of what is not as it was, and refuse what can hardly be meant.

    A state of Caffe or of an older version tells nothing of its run, and is taken as it is.

    Args:
        state: The state to go on from.
        now: The run that goes on.
        seed: The one that was asked for; below 0, any.
        path: The state's file.
        force: Warn of everything, and refuse nothing.
        exact: Refuse whatever gives other numbers than the run that never stopped.

    Raises:
        ConfigError: ``force`` and ``exact`` are both given.
        SnapshotError: Differences are refused; names them.
    """
    if force and exact:
        message = "force goes on with differences, exact refuses them; give one of them"
        raise ConfigError(message, code=ErrorCode.CONFLICT)
    found = list(_all_differences(state, now, seed, exact))
    refused = [one for one in found if (one.wrong and not force) or (exact and one.bits)]
    if refused:
        message = f"this is not the state of this run: {'; '.join(one.text for one in refused)}"
        if any(one.wrong for one in refused):
            message += ". Give the files of one run; --force (force=True) goes on all the same"
        else:
            message += ". Without --exact the run goes on, with other numbers"
        raise SnapshotError(
            message, code=ErrorCode.INCOMPATIBLE, differences=[one.key for one in refused]
        ).at(os.fspath(path))
    if found:
        log.warning(
            "The run that goes on from %s is not as it was:\n%s",
            path, "\n".join(f"  {one.text}" for one in found),
        )  # fmt: skip


def _all_differences(state: State, now: RunFacts, seed: int, exact: bool) -> Iterator[Difference]:
    resume = state.resume
    if resume is None or not resume.HasField("run"):
        if exact:
            yield Difference("fingerprint", "the state does not tell what its run was made of")
        return
    if state.learned_net:
        try:
            now.weights = file_digest(Path(state.learned_net))
        except OSError as error:
            message = f"the weights it names cannot be read: {error}"
            raise SnapshotError(
                message, code=ErrorCode.UNREADABLE, file=state.learned_net
            ) from error
    yield from differences(resume.run, now)
    if resume.HasField("seed") and seed >= 0 and seed != resume.seed:
        text = f"the seed was {resume.seed}, is {seed}: the run keeps {resume.seed}"
        yield Difference("seed", text, bits=False)


def differences(was: RunFacts, now: RunFacts) -> Iterator[Difference]:
    """Yield in what two runs differ; what one of them does not tell counts as equal.

    Args:
        was: The run that a state is of.
        now: The run that goes on from it.
    """
    if was.weights and now.weights and was.weights != now.weights:
        text = "its weights file is not the one that was written with it, or has changed since"
        yield Difference("weights", text, wrong=True)
    if was.type != now.type:
        yield Difference("type", f"the solver was {was.type}, is {now.type}", wrong=True)
    for old, new in zip_longest(was.parameter, now.parameter):
        if old != new:
            text = f"{_parameter(old)} was learned where {_parameter(new)} is"
            yield Difference("parameter", text, wrong=True)
            break  # what follows is shifted
    yield from _sources(was, now)
    for key, old_value, new_value in _changed(was.solver, now.solver):
        yield Difference(key, f"{key} was {old_value}, is {new_value}")
    yield from _layers(_table(was.layer), _table(now.layer))
    for key, old_value, new_value in _changed(was.machine, now.machine):
        yield Difference(key, f"{key} was {old_value}, is {new_value}")


def _parameter(one: RunFacts.Parameter | None) -> str:
    if one is None:
        return "nothing"
    return f"parameter {one.index} of layer {one.layer!r} of shape {shape_string(tuple(one.dim))}"


def _sources(was: RunFacts, now: RunFacts) -> Iterator[Difference]:
    before = {(one.net, one.layer): one for one in was.source}
    for new in now.source:
        old = before.get((new.net, new.layer))
        if old is None:
            continue
        place = f"the data of layer {new.layer!r} of the {new.net} net"
        bits = new.net == "train"
        if old.records and new.records and old.records != new.records:
            text = (
                f"{place} had {old.records} records ({old.path}), have {new.records} ({new.path})"
            )
            yield Difference(new.layer, text, bits=bits)
        elif old.digest != new.digest:
            text = f"{place} are others: they came from {old.path}, come from {new.path}"
            yield Difference(new.layer, text, bits=bits)
        elif old.path != new.path:
            text = f"{place} look the same, but came from {old.path} and come from {new.path}"
            yield Difference(new.layer, text, bits=False)


def _layers(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    if not was:
        return
    groups = (
        ("layers have other fields", [k for k in was if k in now and was[k] != now[k]]),
        ("layers are gone", [key for key in was if key not in now]),
        ("layers are new", [key for key in now if key not in was]),
    )
    for what, names in groups:
        if names:
            yield Difference("layers", f"{what}: {', '.join(names)}")


def _changed(was: Iterable[Fact], now: Iterable[Fact]) -> Iterator[tuple[str, str, str]]:
    before = _table(was)
    for key, value in _table(now).items():
        if before.get(key, value) != value:
            yield key, before[key], value


def _table(facts: Iterable[Fact]) -> dict[str, str]:
    return {fact.key: fact.value for fact in facts}
