"""Rules about solvers: schedules, tests, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from demitasse.core.paths import is_folder
from demitasse.errors import ConfigError
from demitasse.io.proto import SolverParameter
from demitasse.lint.codes import Code
from demitasse.lint.finding import Severity
from demitasse.training.fields import check_fields
from demitasse.training.nets import TRAIN_FIELDS, check_test_counts
from demitasse.training.updates import find_rule

__all__ = ["RULES", "Said"]

USED = {
    "fixed": "",
    "step": "gamma stepsize",
    "exp": "gamma",
    "inv": "gamma power",
    "multistep": "gamma stepvalue",
    "poly": "power",
    "sigmoid": "gamma stepsize",
    "cosine": "",
    "plateau": "gamma plateau_winsize plateau_metric",
    "multifixed": "stagelr stageiter",
}
"""Fields that each policy reads, apart from those that all read."""


class Said(NamedTuple):
    """A finding about a field, whose place is not known yet."""

    severity: Severity
    code: Code
    field: str
    message: str


Rule = Callable[[SolverParameter], Iterator[Said]]


def values(param: SolverParameter) -> Iterator[Said]:
    """Values that training would refuse."""
    try:
        rule = find_rule(param.type)
    except ConfigError as error:
        yield Said("error", "solver-field", "type", error.message)
        return
    checks: list[Callable[[], object]] = [
        lambda: check_fields(param, rule),
        lambda: check_test_counts(param),
    ]
    if not param.HasField("lr_policy"):
        yield Said("error", "solver-field", "lr_policy", "lr_policy is missing")
    for check in checks:
        try:
            check()
        except ConfigError as error:
            endless = "max_iter" in error.fields and not param.max_iter
            field = next((f for f in error.fields if f in _fields(param)), "")
            yield Said(
                "error", "poly-max-iter" if endless else "solver-field", field, error.message
            )
    given = [name for name in TRAIN_FIELDS if param.HasField(name)]
    if len(given) != 1:
        message = f"it needs exactly one of {', '.join(TRAIN_FIELDS)}, and has {len(given)}"
        yield Said("error", "solver-net", given[-1] if given else "", message)
    if not param.HasField("max_iter"):
        message = "max_iter is missing; only `step` can do without"
        yield Said("warning", "solver-field", "", message)


def schedule(param: SolverParameter) -> Iterator[Said]:
    """Learning rates that are not what the fields seem to say."""
    used = USED.get(param.lr_policy)
    if used is not None:
        every = {field for fields in USED.values() for field in fields.split()}
        for field in _fields(param):
            if field in every and field not in used.split():
                message = f"lr_policy {param.lr_policy!r} does not read {field}"
                yield Said("note", "unused-field", field, message)
    if param.lr_policy in {"step", "exp", "multistep", "plateau"} and param.gamma > 1:
        message = f"gamma {param.gamma:g} lets the learning rate grow"
        yield Said("warning", "growing-rate", "gamma", message)
    steps = list(param.stepvalue)
    if steps != sorted(steps):
        message = f"stepvalue must rise; the steps after {max(steps)} come at once"
        yield Said("warning", "stepvalue", "stepvalue", message)
    late = [step for step in steps if param.max_iter and step >= param.max_iter]
    if param.lr_policy == "multistep" and late:
        message = f"stepvalue {late[0]} is not reached before max_iter {param.max_iter}"
        yield Said("note", "stepvalue", "stepvalue", message)
    if param.lr_policy == "step" and param.max_iter and param.stepsize >= param.max_iter:
        message = f"stepsize {param.stepsize} is not reached before max_iter {param.max_iter}"
        yield Said("note", "stepvalue", "stepsize", message)
    if param.momentum >= 1:
        message = f"with momentum {param.momentum:g} steps never die down"
        yield Said("warning", "momentum", "momentum", message)
    if param.clip_gradients >= 0 and param.iter_size > 1:
        message = (
            "clip_gradients looks at the sum over iter_size batches, before it is divided, as in "
            "Caffe"
        )
        yield Said("note", "clip-before-iter-size", "clip_gradients", message)


def snapshots(param: SolverParameter) -> Iterator[Said]:
    """Results that are not kept, or cannot be."""
    folder = Path(param.snapshot_prefix).parent  # without a prefix: beside the solver's file
    writes = param.snapshot or param.snapshot_after_train
    if writes and param.snapshot_prefix and not is_folder(folder):
        message = f"the folder {str(folder)!r} of snapshot_prefix is not there"
        yield Said("error", "snapshot-folder", "snapshot_prefix", message)
    if not writes:
        message = "snapshot is 0 and snapshot_after_train false: nothing is kept"
        yield Said("warning", "no-snapshot", "snapshot_after_train", message)


def tests(param: SolverParameter) -> Iterator[Said]:
    """Tests that are never made."""
    nets = len(param.test_iter) or len(param.test_net) or len(param.test_net_param)
    if param.test_interval and not nets:
        message = "test_interval is given, but no test_iter: nothing is tested"
        yield Said("warning", "no-test", "test_interval", message)
    if param.test_interval > param.max_iter > 0 and nets:
        message = (
            f"test_interval {param.test_interval} is longer than the whole training of "
            f"{param.max_iter} iterations"
        )
        yield Said("note", "no-test", "test_interval", message)


def _fields(param: SolverParameter) -> list[str]:
    return [field.name for field, _ in param.ListFields()]


RULES: tuple[Rule, ...] = (values, schedule, snapshots, tests)
