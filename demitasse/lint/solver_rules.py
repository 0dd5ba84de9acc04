"""Rules about solvers: schedules, tests, snapshots."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from demitasse.core.paths import is_folder
from demitasse.errors import ConfigError
from demitasse.io.proto import SolverParameter
from demitasse.lint.findings import Severity
from demitasse.training.nets import TRAIN_FIELDS, check_test_nets
from demitasse.training.solver_param import check_fields
from demitasse.training.update_rules import find_rule

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
"""Fields that each policy reads, in addition to the common fields."""


FieldFinding = tuple[Severity, str, str, str]
"""Severity, code, field and message of a finding, without file and line."""

Rule = Callable[[SolverParameter], Iterator[FieldFinding]]


def values(param: SolverParameter) -> Iterator[FieldFinding]:
    """Report values that training refuses."""
    try:
        rule = find_rule(param.type)
    except ConfigError as error:
        yield "error", "solver-field", "type", error.message
        return
    checks: list[Callable[[], object]] = [
        partial(check_fields, param, rule), partial(check_test_nets, param)
    ]  # fmt: skip
    if not param.HasField("lr_policy"):
        yield "error", "solver-field", "lr_policy", "lr_policy is missing"
    for check in checks:
        try:
            check()
        except ConfigError as error:
            endless = "max_iter" in error.fields and not param.max_iter
            field = next((f for f in error.fields if f in _fields(param)), "")
            yield "error", "poly-max-iter" if endless else "solver-field", field, error.message
    given = [name for name in TRAIN_FIELDS if param.HasField(name)]
    if len(given) != 1:
        message = f"got {len(given)} of {', '.join(TRAIN_FIELDS)}, expected one"
        yield "error", "solver-net", given[-1] if given else "", message
    if not param.HasField("max_iter"):
        yield "warning", "solver-field", "", "max_iter is missing; only `solver.step` needs none"


def schedule(param: SolverParameter) -> Iterator[FieldFinding]:
    """Report learning rates that differ from the apparent meaning of the fields."""
    used = USED.get(param.lr_policy)
    if used is not None:
        every = {field for fields in USED.values() for field in fields.split()}
        for field in _fields(param):
            if field in every and field not in used.split():
                message = f"lr_policy {param.lr_policy!r} does not read {field}"
                yield "note", "unused-field", field, message
    falls = param.lr_policy in {"step", "exp", "multistep", "plateau"}
    for field in ("gamma", "power"):
        if used is not None and field in used.split() and getattr(param, field) == 0:
            effect = "becomes 0" if falls else "does not fall"
            message = f"{field} is 0 or missing, so the learning rate {effect}"
            yield "warning", "solver-field", "lr_policy", message
    if falls and param.gamma > 1:
        message = f"with gamma {param.gamma:g} the learning rate grows"
        yield "warning", "growing-rate", "gamma", message
    steps = list(param.stepvalue)
    if steps != sorted(steps):
        message = (
            f"stepvalue must be in ascending order; the steps after {max(steps)} apply at once"
        )
        yield "warning", "stepvalue", "stepvalue", message
    late = [step for step in steps if param.max_iter and step >= param.max_iter]
    if param.lr_policy == "multistep" and late:
        message = f"stepvalue {late[0]} is not reached before max_iter {param.max_iter}"
        yield "note", "stepvalue", "stepvalue", message
    if param.lr_policy == "step" and param.max_iter and param.stepsize >= param.max_iter:
        message = f"stepsize {param.stepsize} is not reached before max_iter {param.max_iter}"
        yield "note", "stepvalue", "stepsize", message
    if param.momentum >= 1:
        message = f"with momentum {param.momentum:g} updates never decay"
        yield "warning", "momentum", "momentum", message
    if param.clip_gradients >= 0 and param.iter_size > 1:
        message = (
            "clip_gradients limits the sum over iter_size batches, before division, as in Caffe"
        )
        yield "note", "clip-before-iter-size", "clip_gradients", message


def snapshots(param: SolverParameter) -> Iterator[FieldFinding]:
    """Report missing snapshots, and folders of snapshots that do not exist."""
    folder = Path(param.snapshot_prefix).parent  # without a prefix: the folder of the solver's file
    writes = param.snapshot or param.snapshot_after_train
    if writes and param.snapshot_prefix and not is_folder(folder):
        message = f"the folder {str(folder)!r} of snapshot_prefix does not exist"
        yield "error", "snapshot-folder", "snapshot_prefix", message
    if not writes:
        message = "snapshot is 0 and snapshot_after_train false: no snapshot is written"
        yield "warning", "no-snapshot", "snapshot_after_train", message


def tests(param: SolverParameter) -> Iterator[FieldFinding]:
    """Report tests that never run."""
    nets = len(param.test_iter) or len(param.test_net) or len(param.test_net_param)
    if param.test_interval and not nets:
        message = "test_interval is set without test_iter: no test runs"
        yield "warning", "no-test", "test_interval", message
    if param.test_interval > param.max_iter > 0 and nets:
        message = (
            f"test_interval {param.test_interval} is longer than the training of "
            f"{param.max_iter} iterations"
        )
        yield "note", "no-test", "test_interval", message


def _fields(param: SolverParameter) -> list[str]:
    return [field.name for field, _ in param.ListFields()]


RULES: tuple[Rule, ...] = (values, schedule, snapshots, tests)
