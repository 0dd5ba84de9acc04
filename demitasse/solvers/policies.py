"""Learning rates: functions of the solver's fields and the iteration, nothing else.

Source: Caffe, ``src/caffe/solvers/sgd_solver.cpp``, ``GetLearningRate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from demitasse.errors import ConfigError
from demitasse.proto import SolverParameter

__all__ = ["POLICIES", "check_policy", "learning_rate"]

Rate = tuple[float, int]  # learning rate, current step
Policy = Callable[[SolverParameter, int, int], Rate]


def learning_rate(param: SolverParameter, iteration: int, current_step: int = 0) -> Rate:
    """Return the learning rate of an iteration and the step the policy is now in.

    Args:
        param: The solver's fields.
        iteration: Number of updates made so far.
        current_step: What this function returned for the update before, or what a snapshot holds.
            Only ``multistep`` reads it: it goes up by at most one per update.

    Raises:
        ConfigError: The policy is unknown, lacks a field, or has no finite rate here.
    """
    check_policy(param)
    try:
        rate, step = POLICIES[param.lr_policy](param, iteration, current_step)
    except (OverflowError, ZeroDivisionError):
        rate, step = math.inf, current_step
    if not math.isfinite(rate):
        message = f"lr_policy {param.lr_policy!r} gives no finite learning rate at {iteration=}"
        raise ConfigError(message)
    return rate, step


def check_policy(param: SolverParameter) -> None:
    """Refuse a policy that is unknown or lacks what it needs.

    Raises:
        ConfigError: Says which field is missing or wrong.
    """
    name = param.lr_policy
    if name not in POLICIES:
        given = f"unknown lr_policy {name!r}" if name else "lr_policy is missing"
        message = f"{given}; known are {', '.join(POLICIES)}"
        raise ConfigError(message)
    if not param.HasField("base_lr"):
        message = "base_lr is missing"
        raise ConfigError(message)
    if name in {"step", "exp", "inv", "multistep", "sigmoid"} and not param.gamma >= 0:
        message = f"lr_policy {name!r} needs gamma >= 0, it is {param.gamma:g}"
        raise ConfigError(message)
    if name in {"step", "sigmoid"} and param.stepsize <= 0:
        message = f"lr_policy {name!r} needs stepsize > 0, it is {param.stepsize or 'missing'}"
        raise ConfigError(message)
    if name == "poly" and param.max_iter <= 0:
        message = (
            "lr_policy 'poly' falls to 0 at max_iter, which is missing; give max_iter, the number "
            "of iterations to train for"
        )
        raise ConfigError(message)


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
    """``base_lr * (1 - iter / max_iter) ^ power``."""
    if iteration > param.max_iter:
        message = (
            f"lr_policy 'poly' ends at max_iter ({param.max_iter}), there is no learning rate at "
            f"iteration {iteration}"
        )
        raise ConfigError(message)
    return param.base_lr * (1 - iteration / param.max_iter) ** param.power, step


def _sigmoid(param: SolverParameter, iteration: int, step: int) -> Rate:
    """``base_lr / (1 + exp(-gamma * (iter - stepsize)))``."""
    exponent = min(-param.gamma * (iteration - param.stepsize), 700.0)  # exp stays finite
    return param.base_lr / (1 + math.exp(exponent)), step


POLICIES: dict[str, Policy] = {
    "fixed": _fixed,
    "step": _step,
    "exp": _exp,
    "inv": _inv,
    "multistep": _multistep,
    "poly": _poly,
    "sigmoid": _sigmoid,
}
