"""Importing without the libraries it needs."""

import sys

from expect_error import expect_error

from demitasse.errors import DemitasseError, ErrorCode
from demitasse.interop.onnx_import import import_onnx


def test_onnx_is_asked_for_by_the_name_of_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)

    with expect_error(
        DemitasseError,
        ErrorCode.UNAVAILABLE,
        library="onnx",
        mentions="pip install 'demitasse[onnx]'",
    ):
        import_onnx(tmp_path / "net.onnx")
