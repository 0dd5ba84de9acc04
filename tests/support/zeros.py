"""Parameters of zeros, for nets whose values do not matter: drawing millions takes seconds."""

import numpy as np
import pytest

from demitasse.layers import base
from demitasse.layers.fillers import FILLERS


def fill_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every parameter of the nets that are made from here on the value 0."""
    monkeypatch.setattr(base, "fill", _zero)


def _zero(shape, filler, seed, stream):
    assert filler.type in FILLERS
    return np.zeros(1)  # for all elements
