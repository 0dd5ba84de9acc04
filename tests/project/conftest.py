"""What the tests of the project's texts and examples share: one run of the embedded example."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Run:
    """A finished run of the digits example in ``folder``, and what it printed."""

    folder: Path
    accuracy: float
    caffemodel: Path
    printed: str


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory) -> Run:
    pytest.importorskip("sklearn", reason="the example's digits come from scikit-learn")
    from demitasse.examples import digits

    folder = tmp_path_factory.mktemp("example") / "digits"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = digits.run(folder, device="cpu")
    return Run(folder, result.accuracy, result.caffemodel, printed.getvalue())
