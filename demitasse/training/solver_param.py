"""The fields of a solver: reading, validation, and the schedule of tests, display and snapshots."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demitasse.core.paths import is_text, read_text
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.data.sources.source import Shard
from demitasse.io.proto import SolverParameter, parse_text, read_solver_params, upgrade_solver
from demitasse.layers.checks import at_least, nonfinite_fields
from demitasse.training.evaluation import AP_VERSIONS
from demitasse.training.lr_policies import check_policy
from demitasse.training.monitor import EarlyStopping
from demitasse.training.update_rules import UpdateRule, check_update

EVAL_TYPES = ("classification", "detection")


def read_fields(
    source: str | os.PathLike[str] | SolverParameter, type: str | None, ignore_unknown_fields: bool
) -> tuple[SolverParameter, Path | None]:
    """Return the fields of a solver, with the type if given, and its file if it is one."""
    file = None
    if is_text(source):
        source = parse_text(source, SolverParameter, ignore_unknown_fields=ignore_unknown_fields)
    if isinstance(source, SolverParameter):
        param = SolverParameter()
        param.CopyFrom(source)
        upgrade_solver(param)
    else:
        param = read_solver_params(source, ignore_unknown_fields=ignore_unknown_fields)
        file = Path(source)
    if type is not None:
        param.type = type
    return param, file


def check_fields(param: SolverParameter, rule: UpdateRule) -> None:
    """Check the values of fields before any net is made; a ConfigError names the field.

    A missing ``lr_policy`` raises only when the first update needs it, as in Caffe: a solver may be
    made for its nets alone.
    """
    for name, value in nonfinite_fields(param):
        message = f"got {name} {value}, expected a finite number"
        raise ConfigError(message, code=ErrorCode.NOT_FINITE, field=name, got=value)
    check_update(param, rule)
    if param.HasField("lr_policy"):
        check_policy(param)
    for name, known in (("eval_type", EVAL_TYPES), ("ap_version", tuple(AP_VERSIONS))):
        value = getattr(param, name)
        if value not in known:
            message = f"got {name} {value!r}, expected one of {', '.join(known)}"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, field=name, got=value)
    for name in ("average_loss", "iter_size"):
        at_least(1, name, getattr(param, name))
    for name in ("display", "snapshot", "test_interval", "max_iter"):
        at_least(0, name, getattr(param, name))


@contextmanager
def locate_fields(file: Path | None) -> Iterator[None]:
    """Add the solver's file, unless None, and the line of the field if there is one, to errors."""
    try:
        yield
    except ConfigError as error:
        if not error.fields or file is None:
            raise
        line = next(filter(None, (_line(file, name) for name in error.fields)), None)
        raise (error.at(str(file)) if line is None else error.from_line(f"{file}:{line}")) from None


def _line(file: Path, field: str) -> int | None:
    """Return the line of a field, from 1; None if the file does not set the field."""
    given = re.compile(rf"\s*{re.escape(field)}\s*:")
    try:
        lines = read_text(file, errors="replace").split("\n")
    except OSError:
        return None
    return next((n for n, line in enumerate(lines, 1) if given.match(line)), None)


def check_options(
    param: SolverParameter, keep_last: int | None, early: EarlyStopping | None, shard: Shard
) -> None:
    """Check the arguments of a solver, alone and with its fields (ConfigError)."""
    if keep_last is not None:
        at_least(1, "keep_last", keep_last)
    if not isinstance(early, EarlyStopping | None):
        message = f"got early_stopping {early!r}, expected EarlyStopping(metric, patience)"
        raise ConfigError(message, code=ErrorCode.INVALID, field="early_stopping", got=early)
    if early is not None:
        at_least(1, "patience", early.patience)
    if early is not None and not early.min_delta >= 0:
        message = f"got {early}, expected min_delta >= 0"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="early_stopping")
    if early is not None and not param.test_interval:
        message = "early_stopping needs tests, and test_interval is missing"
        raise ConfigError(message, code=ErrorCode.MISSING, field="test_interval")
    world_size = shard.world_size
    if world_size > 1 and (early is not None or param.lr_policy == "plateau"):
        name = "early_stopping" if early is not None else "lr_policy 'plateau'"
        message = f"{name} cannot be used with world_size {world_size}: only rank 0 tests"
        raise ConfigError(message, code=ErrorCode.CONFLICT, world_size=world_size)


def is_due(interval: int, iteration: int) -> bool:
    """Return whether an action of every ``interval`` iterations is due; with 0 it never is."""
    return bool(interval) and iteration % interval == 0
