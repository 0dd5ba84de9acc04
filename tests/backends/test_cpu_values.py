"""Decisions of the Steps are values: what a pass may do."""

import importlib
import pkgutil

import pytest

from demitasse.backends.cpu import steps as package
from demitasse.backends.cpu.step import CpuStep


def all_steps(base=CpuStep):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for step in base.__subclasses__():
        yield step
        yield from all_steps(step)


@pytest.mark.parametrize("step", dict.fromkeys(all_steps()), ids=lambda one: one.__name__)
def test_a_step_that_does_more_than_its_calls_states_what_its_passes_may_do(step):
    if step.forward is not CpuStep.forward:
        assert step.replayable is not CpuStep.replayable
    if step.backward is not CpuStep.backward and not step.own_backward:
        assert step.backward_replayable is not CpuStep.backward_replayable
