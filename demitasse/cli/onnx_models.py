"""ONNX models as arguments: imported as nets, in memory or to temporary files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from demitasse.core.paths import check_exists
from demitasse.inference.cards.card_file import ONNX
from demitasse.inference.cards.model_files import ModelFiles
from demitasse.net import Net


def open_net(path: Path, phase: str, *, device: str | None, **options: Any) -> Net:
    """Return the net in a prototxt, with options of ``Net``; or in an ONNX file, of phase TEST."""
    if path.suffix != ONNX:
        return Net(path, phase, device=device, **options)
    from demitasse.interop.onnx_import import import_onnx

    check_exists(path)
    return import_onnx(path, device=device).net


@contextmanager
def as_caffe_files(files: ModelFiles) -> Iterator[ModelFiles]:
    """Return files that Caffe reads; an imported ONNX file is removed at the end."""
    if files.net.suffix != ONNX:
        yield files
        return
    from demitasse.interop.onnx_import import import_onnx

    check_exists(files.net)
    with TemporaryDirectory(prefix="demitasse-") as folder:
        net, weights = Path(folder, "net.prototxt"), Path(folder, "net.caffemodel")
        import_onnx(files.net, net, weights, device="numpy").net.close()
        card = None if files.card is None else replace(files.card, net=net, weights=(weights,))
        yield ModelFiles(net, (weights,), card)
