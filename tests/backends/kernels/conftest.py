"""``--guard``: kernels run on memory against inaccessible pages; ``--targets``: on other systems.

Kernels for other systems are compiled and linked, and do not run.
"""

import pytest
import stages
from guarded_memory import guarded_calls
from targets import Recorded

from demitasse.backends.kernels.language import compiler

CALLS = {"test_kernel_interrupts", "test_call_recorder", "test_structs"}
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


@pytest.fixture(autouse=True, scope="session")
def targets(request):
    """Compile each kernel for other systems, where ``--targets`` asks for it."""
    architecture = request.config.getoption("--targets")
    if architecture is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        recorded = Recorded(architecture)
        patch.setattr(compiler, "linked", recorded)
        yield
    assert not recorded.faults, "\n".join(recorded.faults)
    assert recorded.count > 1000
