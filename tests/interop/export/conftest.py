"""The frameworks that nets are exported to."""

import pytest
from exporting import expect_same as same_in_onnx
from exporting import expect_same_torch as same_in_torch

FRAMEWORKS = {
    "onnx": (same_in_onnx, ("onnx", "onnxruntime")),
    "torch": (same_in_torch, ("torch",)),
}


@pytest.fixture(scope="session", params=FRAMEWORKS)
def expect_same(request):
    """Exports a net to a framework and compares every blob."""
    export, libraries = FRAMEWORKS[request.param]
    for name in libraries:
        pytest.importorskip(name, reason=f"needs {name}: nox -s frameworks")
    return export
