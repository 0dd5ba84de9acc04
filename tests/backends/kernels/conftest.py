"""``--guard``: kernels run on memory against inaccessible pages."""

import pytest
import stages
from guarded_memory import guarded_calls

CALLS = {"test_kernel_interrupts", "test_later", "test_structs"}
"""Tests of the calls themselves, which a guard replaces."""

STAGES = {"test_multiply"}
"""Tests of one stage of a kernel, which reads what another stage has written to scratch memory."""


@pytest.fixture(autouse=True)
def guard(request, monkeypatch):
    """Guard the kernels that a test runs, where ``--guard`` asks for it."""
    side = request.config.getoption("--guard")
    if side is None or request.node.path.stem in CALLS:
        yield
        return
    monkeypatch.setattr(stages, "guard", side)
    with guarded_calls(monkeypatch, side, poisons=request.node.path.stem not in STAGES):
        yield
