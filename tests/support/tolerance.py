"""How far two results of one computation may be apart: one answer for each dtype.

Differences are taken relative to the largest value of an array, not element by element:
cancellation leaves noise in small elements that says nothing about the code.
"""

from collections.abc import Iterator, Mapping

import numpy as np

RTOL = {"float32": 2e-5, "float64": 1e-12}
"""Largest difference, over the largest value of an array: sums may run in another order."""

LEAST = 1e-3
"""The scale of arrays whose values are all smaller."""

LEAST_OF_SUMS = 1.0
"""The same for gradients of parameters, which are sums of many terms that may cancel."""

SUM = "gradient of parameter"
"""How the names of such sums begin."""

Arrays = dict[str, np.ndarray]


def expect_near(got: np.ndarray, want: object, rtol: float | None = None) -> None:
    """Fail where an array is further from what was computed in float64 than its dtype allows."""
    found = np.asarray(got)
    expected = np.asarray(want).astype(found.dtype)
    allowed = RTOL[found.dtype.name] if rtol is None else rtol
    expect_all_near({"result": found}, {"result": expected}, allowed)


def expect_all_near(
    got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], rtol: float, of: object = ""
) -> None:
    """Fail with one line for every array that is further off than ``rtol`` of its scale."""
    assert list(got) == list(want)
    wrong = [line for key in want for line in _judge(key, got[key], want[key], rtol)]
    assert not wrong, "\n  ".join([f"{of}:", *wrong])


def _judge(key: str, got: np.ndarray, want: np.ndarray, rtol: float) -> Iterator[str]:
    known = np.isfinite(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        yield f"{key}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    elif not np.array_equal(got[~known], want[~known], equal_nan=True):
        yield f"{key}: not finite elsewhere"
    else:
        least = LEAST_OF_SUMS if key.startswith(SUM) else LEAST
        scale = max(least, np.abs(want[known]).max(initial=0))
        error = np.abs(got[known] - want[known]).max(initial=0) / scale
        if not error <= rtol:
            yield f"{key}: off by {error:.2g} of its scale, allowed {rtol:.2g}"
