"""What the prepared Steps share."""

from __future__ import annotations

from typing import Any, Protocol

from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.engine import Description
from demitasse.backends.onednn.library.layout import any_layout

__all__ = ["Part", "PreparedStep"]


class Part(Protocol):
    """What a Step runs: one primitive with its ports, or several that belong together."""

    def __call__(self) -> None:
        """Compute."""

    @property
    def workspace(self) -> int:
        """Bytes it holds."""

    @property
    def implementations(self) -> list[str]:
        """Names of the library's code that it runs."""


class PreparedStep(Step):
    """Calls that run in order, forward and backward.

    Args:
        backend: The backend.
        at: The blobs.
    """

    def __init__(self, backend: OnednnBackend, at: Operands) -> None:
        self.backend, self.engine = backend, backend.engine
        self.at: Any = at
        self.forward_calls: list[Part] = []
        self.backward_calls: list[Part] = []
        self.kept = 0

    @property
    def workspace(self) -> int:  # type: ignore[override]
        calls = (*self.forward_calls, *self.backward_calls)
        return self.kept + sum(call.workspace for call in calls)

    def any(self, shape: tuple[int, ...]) -> int:
        """Return a descriptor that leaves the layout of ``shape`` to the primitive."""
        return any_layout(self.engine.library, shape)

    def describe(self, function: str, *arguments: Any) -> Description | None:
        """Ask for a primitive of this engine."""
        return self.engine.describe(f"dnnl_{function}", self.engine.handle, *arguments)

    def forward(self) -> None:
        for call in self.forward_calls:
            call()

    def lower_backward(self, operands: Operands) -> bool:
        self.at, self.backward_calls = operands, []
        return not operands.backward or self.prepare_backward()

    def prepare_backward(self) -> bool:
        """Make the calls of the backward pass; False where they cannot be made."""
        return False

    def backward(self) -> None:
        for call in self.backward_calls:
            call()
