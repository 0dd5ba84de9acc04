"""Learning-rate policies: functions of the solver's fields, the iteration and the step alone.

Source: Caffe, ``src/caffe/solvers/sgd_solver.cpp``, ``GetLearningRate``; the same of NVCaffe for
``rampup_interval`` and ``min_lr``, of Intel's Caffe for ``warmup_iter`` and ``multifixed``.
"""

import math
from collections.abc import Callable
from typing import Any

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter

Rate = tuple[float, int]  # learning rate, current step


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
    policy, step = param.lr_policy, current_step
    if in_ramp(param, iteration):
        if param.rampup_interval:
            low, done = param.rampup_lr, (iteration / param.rampup_interval) ** 2
        else:
            low, done = param.warmup_start_lr, iteration / param.warmup_iter
        rate = low + (param.base_lr - low) * done
    else:
        if policy == "step":
            step = iteration // param.stepsize
        elif policy == "multistep" and step < len(param.stepvalue):
            step += iteration >= param.stepvalue[step]
        try:
            rate = POLICIES[policy](param, iteration, step)
        except (OverflowError, ZeroDivisionError):
            rate = math.inf
        if not math.isfinite(rate):
            message = f"lr_policy {policy!r} gives no finite learning rate at {iteration=}"
            details: Any = {"field": "lr_policy", "iteration": iteration}
            raise ConfigError(message, code=ErrorCode.NOT_FINITE, **details)
    # Without min_lr a rate may be negative.
    return max(rate, param.min_lr) if param.HasField("min_lr") else rate, step


def in_ramp(param: SolverParameter, iteration: int) -> bool:
    """Return whether the learning rate still rises to ``base_lr`` at an iteration."""
    return iteration < max(param.rampup_interval, param.warmup_iter)


def _poly(param: SolverParameter, iteration: int, _: int) -> float:
    if iteration > param.max_iter:
        message = (
            f"lr_policy 'poly' ends at max_iter {param.max_iter}, and has no learning rate at "
            f"iteration {iteration}"
        )
        details: Any = {"field": "max_iter", "iteration": iteration}
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, **details)
    left: float = (1 - iteration / param.max_iter) ** param.power
    return (param.base_lr - param.min_lr) * left + param.min_lr


def _sigmoid(param: SolverParameter, iteration: int, _: int) -> float:
    exponent = min(-param.gamma * (iteration - param.stepsize), 700.0)  # exp stays finite
    return param.base_lr / (1 + math.exp(exponent))


def _cosine(param: SolverParameter, iteration: int, _: int) -> float:
    begin = max(param.rampup_interval, param.warmup_iter)
    done = min((iteration - begin) / max(param.max_iter - begin, 1), 1.0)
    return param.min_lr + (param.base_lr - param.min_lr) * (1 + math.cos(math.pi * done)) / 2


def _multifixed(param: SolverParameter, iteration: int, _: int) -> float:
    stages = zip(param.stagelr, param.stageiter, strict=True)
    return next((rate for rate, end in stages if iteration <= end), param.stagelr[-1])


POLICIES: dict[str, Callable[[SolverParameter, int, int], float]] = {
    "fixed": lambda p, iteration, step: p.base_lr,
    # step = floor(iter / stepsize)
    "step": lambda p, iteration, step: p.base_lr * p.gamma**step,
    "exp": lambda p, iteration, step: p.base_lr * p.gamma**iteration,
    "inv": lambda p, iteration, step: p.base_lr * (1 + p.gamma * iteration) ** -p.power,
    # step grows when iter reaches the next ``stepvalue``
    "multistep": lambda p, iteration, step: p.base_lr * p.gamma**step,
    # (base_lr - min_lr) * (1 - iter / max_iter) ^ power + min_lr
    "poly": _poly,
    # base_lr / (1 + exp(-gamma * (iter - stepsize)))
    "sigmoid": _sigmoid,
    # base_lr to min_lr by half a cosine wave, from the end of a ramp to max_iter
    "cosine": _cosine,
    # step grows after a time without improvement
    "plateau": lambda p, iteration, step: p.base_lr * p.gamma**step,
    # stagelr of the first stage with iter <= stageiter, instead of base_lr
    "multifixed": _multifixed,
}
"""Policies of Caffe and of its forks: the rate by the fields, the iteration and the step."""


def check_policy(param: SolverParameter) -> None:
    """Raise a ConfigError unless a policy is known and has valid fields."""

    def fault(code: ErrorCode, message: str, *fields: str, **details: object) -> ConfigError:
        return ConfigError(message, fields=fields, code=code, field=fields[0], **details)

    name = param.lr_policy
    if name not in POLICIES:
        near = suggestion(name, POLICIES)
        text = f"unknown lr_policy {name!r}{near}" if name else "lr_policy is missing"
        code = ErrorCode.UNKNOWN if name else ErrorCode.MISSING
        message = f"{text}; known policies are {', '.join(POLICIES)}"
        raise fault(code, message, "lr_policy", got=name)
    for field in ("min_lr", "rampup_interval", "rampup_lr", "warmup_iter", "warmup_start_lr"):
        if not getattr(param, field) >= 0:
            message = f"got {field} {getattr(param, field):g}, expected at least 0"
            raise fault(ErrorCode.OUT_OF_RANGE, message, field, got=getattr(param, field))
    if param.rampup_interval and param.warmup_iter:
        message = "rampup_interval (NVCaffe) and warmup_iter (Intel) exclude each other; give one"
        raise fault(ErrorCode.CONFLICT, message, "rampup_interval", "warmup_iter")
    if name == "multifixed":
        rates, ends = list(param.stagelr), list(param.stageiter)
        if not rates or len(rates) != len(ends) or ends != sorted(ends):
            message = (
                f"got stagelr {rates} and stageiter {ends}, expected equally many values of both "
                "for lr_policy 'multifixed', and a rising stageiter"
            )
            raise fault(ErrorCode.COUNT_MISMATCH, message, "stagelr", "stageiter", "lr_policy")
        return
    if not param.HasField("base_lr"):
        message = "base_lr, the learning rate, is missing; give e.g. base_lr: 0.01"
        raise fault(ErrorCode.MISSING, message, "base_lr")
    if param.HasField("min_lr") and param.min_lr > param.base_lr:
        message = f"min_lr ({param.min_lr:g}) is above base_lr ({param.base_lr:g})"
        raise fault(ErrorCode.OUT_OF_RANGE, message, "min_lr", "base_lr", got=param.min_lr)
    if name in NEED_GAMMA and not param.gamma >= 0:
        message = f"got gamma {param.gamma:g}, expected gamma >= 0 for lr_policy {name!r}"
        raise fault(ErrorCode.OUT_OF_RANGE, message, "gamma", "lr_policy", got=param.gamma)
    if name in {"step", "sigmoid"} and param.stepsize <= 0:
        message = f"got stepsize {param.stepsize}, expected stepsize > 0 for lr_policy {name!r}"
        raise fault(ErrorCode.OUT_OF_RANGE, message, "stepsize", "lr_policy", got=param.stepsize)
    if name in {"poly", "cosine"} and param.max_iter <= 0:
        message = (
            f"lr_policy {name!r} falls to {param.min_lr:g} at max_iter, which is missing; give the "
            "number of iterations"
        )
        raise fault(ErrorCode.MISSING, message, "max_iter", "lr_policy")
    if name == "plateau" and min(param.plateau_winsize, default=0) <= 0:
        message = (
            "lr_policy 'plateau' needs plateau_winsize for each step: the number of iterations "
            "without improvement before the step, at least 1"
        )
        raise fault(ErrorCode.MISSING, message, "plateau_winsize", "lr_policy")


NEED_GAMMA = frozenset({"step", "exp", "inv", "multistep", "sigmoid", "plateau"})
