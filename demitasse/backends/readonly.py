"""numpy whose ``read()`` arrays refuse writes: catches layers that scribble on their inputs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.step import Lowerings

__all__ = ["ReadonlyBackend"]


class ReadonlyBackend(NumpyBackend):
    """For tests: portable layers and updates only, on views that must not be written."""

    name = "readonly"
    lowerings: ClassVar[Lowerings] = {}

    @classmethod
    def devices(cls) -> list[str]:
        return ["readonly"]

    @property
    def updates(self) -> None:
        return None

    def guard(self, array: np.ndarray) -> np.ndarray:
        view = array.view()
        view.flags.writeable = False
        return view
