"""Nets with weights, for verbs that run them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from demitasse.core.log import get_logger
from demitasse.io.weights.pairing import OnMismatch
from demitasse.net import Net
from demitasse.training.nets import tell_load

__all__ = ["load_weights_into"]

log = get_logger(__name__)


def load_weights_into(
    net: Net, files: Sequence[str | os.PathLike[str]], on_mismatch: OnMismatch = "error"
) -> None:
    """Load files one after the other, and tell what of them and of the net was left out."""
    missing = set(net.params) if files else set()
    for file in files:
        report = net.load(file, on_mismatch)
        tell_load(report, file)
        missing &= set(report.missing)
    for layer in net.params:
        if layer in missing:
            log.warning("No file has weights for layer %s; it keeps those it was made with", layer)
