"""Importing without the libraries it needs."""

import sys

import pytest

from demitasse.errors import DemitasseError
from demitasse.interop.onnx_import import import_onnx


def test_onnx_is_asked_for_by_the_name_of_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)

    with pytest.raises(DemitasseError, match=r"pip install 'demitasse\[onnx\]'"):
        import_onnx(tmp_path / "net.onnx")
