"""Numbers of 16 bits for tests, and the layers to try them on."""

import numpy as np

from demitasse.backends.storage import narrowed, widen_into
from demitasse.layers.registry import CATALOG
from demitasse.testing.layer_cases import CASES, OTHER_CASES

UNIT = {"half": 2.0**-11, "bfloat16": 2.0**-8}
"""How far a kept number is from what it was, at most, relative to it."""

LEAST = {"half": 2.0**-25, "bfloat16": 0.0}
"""The same of numbers below the smallest normal one."""

CASES_OF = {
    name: [
        case
        for table in (CASES, OTHER_CASES)
        for case in table.get(name, ())
        if not (name == "DecodeBBox" and len(case.bottoms) > 2)  # objects, in phase TRAIN alone
    ]
    for name in CATALOG
}


def kept(values, kind):
    """Values as they are after they were kept in 16 bits."""
    wide = np.empty(np.shape(values), np.float32)
    widen_into(narrowed(np.asarray(values, np.float32), kind), kind, wide)
    return wide
