"""numpy whose ``read()`` arrays refuse writes: catches layers that scribble on their inputs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from demitasse.backends.base import Lowering, Step
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.ops import Op

__all__ = ["ReadonlyBackend"]


class ReadonlyBackend(NumpyBackend):
    """For tests: portable layers only, on views that must not be written."""

    name = "readonly"
    lowerings: ClassVar[dict[type[Op], Lowering]] = {}

    @classmethod
    def devices(cls) -> list[str]:
        return ["readonly"]

    def guard(self, array: np.ndarray) -> np.ndarray:
        view = array.view()
        view.flags.writeable = False
        return view

    def lower(self, op: Op, operands: object) -> Step | None:
        del op, operands
        return None
