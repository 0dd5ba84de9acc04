"""ONNX models as arguments: imported as nets, in memory or to temporary files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from demitasse.core.paths import check_exists
from demitasse.inference.cards.card_file import ONNX
from demitasse.inference.cards.model_files import ModelFiles
from demitasse.net import Net


def open_net(
    path: Path,
    phase: str,
    *,
    device: str | None = None,
    seed: int | None = None,
    level: int = 0,
    stages: Sequence[str] = (),
) -> Net:
    """Return the net in a prototxt, or in an ONNX file, which is one of phase TEST.

    Raises:
        DemitasseError: The file cannot be read, or onnx is not installed.
    """
    if path.suffix != ONNX:
        return Net(path, phase, device=device, seed=seed, level=level, stages=stages)
    from demitasse.interop.onnx_import import import_onnx

    check_exists(path)
    return import_onnx(path, device=device).net


@contextmanager
def as_caffe_files(files: ModelFiles) -> Iterator[ModelFiles]:
    """Return files that Caffe reads: those given, or an import of an ONNX file, removed at the end.

    Raises:
        DemitasseError: The file cannot be read, or onnx is not installed.
    """
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
