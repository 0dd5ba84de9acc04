"""Hold a file of ONNX against the net, by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.errors import DataError, ErrorCode
from demitasse.interop.export.check import Arrays, Images, check_written
from demitasse.interop.export.onnx.library import library
from demitasse.interop.export.walk import Walk
from demitasse.net import Net
from demitasse.testing.comparison import Comparison

__all__ = ["check_file"]

TYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
"""What inputs are of."""


def check_file(
    path: Path,
    net: Net,
    walk: Walk,
    how: Images | None = None,
    inputs: Arrays | None = None,
    seed: int = 0,
) -> Comparison:
    """Run a file by ONNX Runtime, and the net, on the same inputs; see ``check_written``.

    Raises:
        DataError: ONNX Runtime cannot load the file, or not run it.
    """
    return check_written("onnxruntime", partial(_run, path), net, walk, how, inputs, seed)


def _run(path: Path, given: Arrays, names: Sequence[str], *, fused: bool) -> Arrays:
    """Return values that ONNX Runtime computes.

    Raises:
        DataError: It cannot.
    """
    onnx, runtime = library("onnx"), library("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    model: Any = str(path)
    if not fused:
        levels = runtime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_DISABLE_ALL
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.resolve().parent)
        )
        model = _with_outputs(onnx.load(str(path), load_external_data=False), names)
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        arrays = {one.name: np.asarray(given[one.name], TYPES[one.type])
                  for one in session.get_inputs()}  # fmt: skip
        there = {one.name for one in session.get_outputs()}
        asked = [name for name in dict.fromkeys(names) if name in there]
        found = session.run(asked, arrays) if asked else []
    except Exception as error:  # the library's exceptions have no common base
        message = f"ONNX Runtime cannot run it: {error}"
        raise DataError(message, str(path), code=ErrorCode.FAILED) from error
    return dict(zip(asked, found, strict=True))


def _with_outputs(model: Any, names: Sequence[str]) -> bytes:
    """Return a model whose values all are outputs."""
    onnx = library("onnx")
    there = {one.name for one in (*model.graph.output, *model.graph.input)}
    for name in dict.fromkeys(names):
        if name not in there:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    data: bytes = model.SerializeToString()
    return data
