"""Learning-rate policies: functions of the solver's fields, the iteration and the step alone.

Source: Caffe, ``src/caffe/solvers/sgd_solver.cpp``, ``GetLearningRate``; the same of NVCaffe for
``rampup_interval`` and ``min_lr``, of Intel's Caffe for ``warmup_iter`` and ``multifixed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter

Rate = tuple[float, int]  # learning rate, current step
Policy = Callable[[SolverParameter, int, int], Rate]


def learning_rate(param: SolverParameter, iteration: int, current_step: int = 0) -> Rate:
    """Return the learning rate of an iteration and the step of its policy.

    Args:
        param: The solver's fields.
        iteration: Number of updates made so far.
        current_step: Step that this function returned for the update before, or of a snapshot.
            Only ``multistep``, which adds at most one per update, and ``plateau`` read it.

    Raises:
        ConfigError: The policy is unknown, lacks a field, or has no finite rate here.
    """
    check_policy(param)
    if in_ramp(param, iteration):
        return _floored(param, _ramp(param, iteration)), current_step
    try:
        rate, step = POLICIES[param.lr_policy](param, iteration, current_step)
    except (OverflowError, ZeroDivisionError):
        rate, step = math.inf, current_step
    if not math.isfinite(rate):
        message = f"lr_policy {param.lr_policy!r} gives no finite learning rate at {iteration=}"
        raise ConfigError(
            message, code=ErrorCode.NOT_FINITE, field="lr_policy", iteration=iteration
        )
    return _floored(param, rate), step


def _floored(param: SolverParameter, rate: float) -> float:
    """Return a rate of at least ``min_lr``; without that field it may be negative."""
    return max(rate, param.min_lr) if param.HasField("min_lr") else rate


def in_ramp(param: SolverParameter, iteration: int) -> bool:
    """Return whether the learning rate still rises to ``base_lr`` at an iteration."""
    return iteration < max(param.rampup_interval, param.warmup_iter)


def _ramp(param: SolverParameter, iteration: int) -> float:
    if param.rampup_interval:
        low, done = param.rampup_lr, (iteration / param.rampup_interval) ** 2
    else:
        low, done = param.warmup_start_lr, iteration / param.warmup_iter
    return low + (param.base_lr - low) * done


def check_policy(param: SolverParameter) -> None:
    """Check that a policy is known and has valid fields.

    Raises:
        ConfigError: Names the field that is missing or invalid.
    """
    name = param.lr_policy
    if name not in POLICIES:
        near = suggestion(name, POLICIES)
        fault = f"unknown lr_policy {name!r}{near}" if name else "lr_policy is missing"
        message = f"{fault}; known policies are {', '.join(POLICIES)}"
        raise ConfigError(
            message,
            fields=("lr_policy",),
            code=ErrorCode.UNKNOWN if name else ErrorCode.MISSING,
            field="lr_policy",
            got=name,
        )
    _check_limits(param)
    if name == "multifixed":
        _check_stages(param)
        return
    if not param.HasField("base_lr"):
        message = "base_lr, the learning rate, is missing; give e.g. base_lr: 0.01"
        raise ConfigError(message, fields=("base_lr",), code=ErrorCode.MISSING, field="base_lr")
    if param.HasField("min_lr") and param.min_lr > param.base_lr:
        message = f"min_lr ({param.min_lr:g}) is above base_lr ({param.base_lr:g})"
        raise ConfigError(
            message,
            fields=("min_lr", "base_lr"),
            code=ErrorCode.OUT_OF_RANGE,
            field="min_lr",
            got=param.min_lr,
        )
    if name in NEED_GAMMA and not param.gamma >= 0:
        message = f"got gamma {param.gamma:g}, expected gamma >= 0 for lr_policy {name!r}"
        raise ConfigError(
            message,
            fields=("gamma", "lr_policy"),
            code=ErrorCode.OUT_OF_RANGE,
            field="gamma",
            got=param.gamma,
        )
    if name in {"step", "sigmoid"} and param.stepsize <= 0:
        message = f"got stepsize {param.stepsize}, expected stepsize > 0 for lr_policy {name!r}"
        raise ConfigError(
            message,
            fields=("stepsize", "lr_policy"),
            code=ErrorCode.OUT_OF_RANGE,
            field="stepsize",
            got=param.stepsize,
        )
    if name in {"poly", "cosine"} and param.max_iter <= 0:
        message = (
            f"lr_policy {name!r} falls to {param.min_lr:g} at max_iter, which is missing; give the "
            "number of iterations"
        )
        raise ConfigError(
            message, fields=("max_iter", "lr_policy"), code=ErrorCode.MISSING, field="max_iter"
        )
    if name == "plateau" and min(param.plateau_winsize, default=0) <= 0:
        message = (
            "lr_policy 'plateau' needs plateau_winsize for each step: the number of iterations "
            "without improvement before the step, at least 1"
        )
        raise ConfigError(
            message,
            fields=("plateau_winsize", "lr_policy"),
            code=ErrorCode.MISSING,
            field="plateau_winsize",
        )


def _check_limits(param: SolverParameter) -> None:
    for name in ("min_lr", "rampup_interval", "rampup_lr", "warmup_iter", "warmup_start_lr"):
        if not getattr(param, name) >= 0:
            message = f"got {name} {getattr(param, name):g}, expected at least 0"
            raise ConfigError(
                message,
                fields=(name,),
                code=ErrorCode.OUT_OF_RANGE,
                field=name,
                got=getattr(param, name),
            )
    if param.rampup_interval and param.warmup_iter:
        message = "rampup_interval (NVCaffe) and warmup_iter (Intel) exclude each other; give one"
        raise ConfigError(
            message,
            fields=("rampup_interval", "warmup_iter"),
            code=ErrorCode.CONFLICT,
            field="rampup_interval",
        )


def _check_stages(param: SolverParameter) -> None:
    rates, ends = list(param.stagelr), list(param.stageiter)
    if not rates or len(rates) != len(ends) or ends != sorted(ends):
        message = (
            f"got stagelr {rates} and stageiter {ends}, expected equally many values of both for "
            "lr_policy 'multifixed', and a rising stageiter"
        )
        raise ConfigError(
            message,
            fields=("stagelr", "stageiter", "lr_policy"),
            code=ErrorCode.COUNT_MISMATCH,
            field="stagelr",
        )


def _fixed(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr``."""
    del iteration
    return param.base_lr, step


def _step(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr * gamma ^ floor(iter / stepsize)``."""
    step = iteration // param.stepsize
    return param.base_lr * param.gamma**step, step


def _exp(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr * gamma ^ iter``."""
    return param.base_lr * param.gamma**iteration, step


def _inv(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr * (1 + gamma * iter) ^ -power``."""
    return param.base_lr * (1 + param.gamma * iteration) ** -param.power, step


def _multistep(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr * gamma ^ step``; step grows when iter reaches the next ``stepvalue``."""
    if step < len(param.stepvalue) and iteration >= param.stepvalue[step]:
        step += 1
    return param.base_lr * param.gamma**step, step


def _poly(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``(base_lr - min_lr) * (1 - iter / max_iter) ^ power + min_lr``."""
    if iteration > param.max_iter:
        message = (
            f"lr_policy 'poly' ends at max_iter {param.max_iter}, and has no learning rate at "
            f"iteration {iteration}"
        )
        raise ConfigError(
            message, code=ErrorCode.OUT_OF_RANGE, field="max_iter", iteration=iteration
        )
    left: float = (1 - iteration / param.max_iter) ** param.power
    return (param.base_lr - param.min_lr) * left + param.min_lr, step


def _sigmoid(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr / (1 + exp(-gamma * (iter - stepsize)))``."""
    exponent = min(-param.gamma * (iteration - param.stepsize), 700.0)  # exp stays finite
    return param.base_lr / (1 + math.exp(exponent)), step


def _cosine(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr`` to ``min_lr`` by half a cosine wave, from the end of a ramp to ``max_iter``."""
    begin = max(param.rampup_interval, param.warmup_iter)
    done = min((iteration - begin) / max(param.max_iter - begin, 1), 1.0)
    return param.min_lr + (param.base_lr - param.min_lr) * (1 + math.cos(math.pi * done)) / 2, step


def _plateau(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr * gamma ^ step``; the step grows after a time without improvement."""
    del iteration
    return param.base_lr * param.gamma**step, step


def _multifixed(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``stagelr`` of the first stage with ``iter <= stageiter``, instead of ``base_lr``."""
    stages = zip(param.stagelr, param.stageiter, strict=True)
    last: float = param.stagelr[-1]
    return next((rate for rate, end in stages if iteration <= end), last), step


NEED_GAMMA = frozenset({"step", "exp", "inv", "multistep", "sigmoid", "plateau"})

POLICIES: dict[str, Policy] = {
    "fixed": _fixed,
    "step": _step,
    "exp": _exp,
    "inv": _inv,
    "multistep": _multistep,
    "poly": _poly,
    "sigmoid": _sigmoid,
    "cosine": _cosine,
    "plateau": _plateau,
    "multifixed": _multifixed,
}
"""Policies of Caffe and of its forks, by name."""
