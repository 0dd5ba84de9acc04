"""Reading a solver's fields, and refusing what it cannot work with before any net is made."""

from __future__ import annotations

import os
from pathlib import Path

from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter, read_solver_params, upgrade_solver
from demitasse.training.detection import AP_VERSIONS
from demitasse.training.policies import check_policy
from demitasse.training.updates import UpdateRule, check_update
from demitasse.training.watch import EarlyStopping

__all__ = ["check_fields", "check_options", "read_fields"]

EVAL_TYPES = ("classification", "detection")


def read_fields(
    source: str | os.PathLike[str] | SolverParameter,
    *,
    type: str | None = None,
    ignore_unknown_fields: bool = False,
) -> tuple[SolverParameter, Path | None]:
    """Return the fields of a solver, of another type if it is given, and the folder of its file."""
    folder = None
    if isinstance(source, SolverParameter):
        param = SolverParameter()
        param.CopyFrom(source)
        upgrade_solver(param)
    else:
        param = read_solver_params(source, ignore_unknown_fields=ignore_unknown_fields)
        folder = Path(source).parent
    if type is not None:
        param.type = type
    return param, folder


def check_fields(param: SolverParameter, rule: UpdateRule) -> None:
    """Refuse values that fields cannot have.

    A missing ``lr_policy`` is refused when the first update needs it, as in Caffe: a solver may be
    made for its nets alone.

    Raises:
        ConfigError: Says which field, and what it may be.
    """
    check_update(param, rule)
    if param.HasField("lr_policy"):
        check_policy(param)
    for name, known in (("eval_type", EVAL_TYPES), ("ap_version", tuple(AP_VERSIONS))):
        value = getattr(param, name)
        if value not in known:
            message = f"{name} must be one of {', '.join(known)}, it is {value!r}"
            raise ConfigError(
                message, fields=(name,), code=ErrorCode.UNKNOWN, field=name, got=value
            )
    for name in ("average_loss", "iter_size"):
        _at_least(1, name, getattr(param, name))
    for name in ("display", "snapshot", "test_interval", "max_iter"):
        _at_least(0, name, getattr(param, name))


def check_options(
    param: SolverParameter, keep_last: int | None, early: EarlyStopping | None, workers: int
) -> None:
    """Refuse arguments of a solver that cannot be, alone or together with its fields.

    Raises:
        ConfigError: Says which.
    """
    if keep_last is not None:
        _at_least(1, "keep_last", keep_last)
    if early is not None and not param.test_interval:
        message = "early_stopping looks at the results of tests, but test_interval is not given"
        raise ConfigError(message, code=ErrorCode.MISSING, field="test_interval")
    if workers > 1 and (early is not None or param.lr_policy == "plateau"):
        what = "early_stopping" if early is not None else "lr_policy 'plateau'"
        message = f"{what} cannot be used with several ranks: only the first of them tests"
        raise ConfigError(message, code=ErrorCode.CONFLICT, world_size=workers)


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        message = f"{name} must be at least {least}, it is {value}"
        raise ConfigError(
            message, fields=(name,), code=ErrorCode.OUT_OF_RANGE, field=name, got=value
        )
