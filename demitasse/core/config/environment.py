"""Our environment variables: those of settings, and some that are no settings."""

from __future__ import annotations

import os
from functools import cache

from demitasse.core.config.table import PREFIX, TABLE
from demitasse.core.suggest import suggestion
from demitasse.errors import ConfigError

__all__ = ["OTHERS", "check_variables"]

_PREFIX_BYTES = os.fsencode(PREFIX)

OTHERS = {
    "DEMITASSE_REFERENCE_DATA": "tests: folder of models and data recorded from Caffe",
    "DEMITASSE_REQUIRE_GPU": "tests: fail where there is no GPU",
    "DEMITASSE_CUDA_EXTRA": "nox: which of the extras cuda12 and cuda13 to install",
    "DEMITASSE_TEST_BACKENDS": "conformance tests: the devices",
    "DEMITASSE_KILLS": "tests: how often a training run is killed",
    "DEMITASSE_FAULTS": "tests: how many faults of each writer are tried, at most",
    "DEMITASSE_INTERRUPTIONS": "tests: at how many places in each piece of work errors are raised",
    "DEMITASSE_TEST_STAND_IN": "tests: put the stand-in for cupy and two GPUs in their place",
    "DEMITASSE_KERNEL_FLAGS": "tests: flags for compiling CUDA kernels for the host",
}
"""Variables that are no settings, and what for."""


def check_variables() -> None:
    """See that every variable that begins as ours do is one.

    Raises:
        ConfigError: One is not; names the nearest.
    """
    if os.supports_bytes_environ:  # where names are kept as bytes, decoding all takes long
        mine = tuple(name for name in os.environb if name.startswith(_PREFIX_BYTES))
        _check(tuple(map(os.fsdecode, mine)))
    else:
        _check(tuple(name for name in os.environ if name.startswith(PREFIX)))


@cache
def _check(names: tuple[str, ...]) -> None:
    known = [*(setting.variable for setting in TABLE.values()), *OTHERS]
    for name in names:
        if name not in known:
            message = (
                f"the environment variable {name} is none of ours{suggestion(name, known)}; "
                f"known are {', '.join(known)}"
            )
            raise ConfigError(message)
