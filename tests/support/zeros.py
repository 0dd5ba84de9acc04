"""Nets whose parameters are zeros, for tests of what runs, which does not depend on values."""

import pytest

from demitasse.memory import SyncedMemory


def fill_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave every parameter of the nets that are made from here on as new memory is: zeros."""
    monkeypatch.setattr(SyncedMemory, "lazy_init", lambda memory, write: memory.clear())
