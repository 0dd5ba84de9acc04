"""Hold a net that was imported against its model, value by value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demitasse.net import Net
from demitasse.testing.comparison import Comparison, run_net
from demitasse.testing.differences import Difference, gap
from demitasse.testing.inputs import random_inputs
from demitasse.testing.others.onnx_model import OnnxModel

__all__ = ["check_import"]

RUNTIME = "onnxruntime"


def check_import(
    path: Path,
    net: Net,
    blobs: Mapping[str, str],
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Comparison:
    """Run a file by ONNX Runtime, and the net, on the same inputs.

    Every value of the file that a blob holds is compared, and the outputs once more where layers
    run as one.

    Args:
        path: The file.
        net: The net, with its weights.
        blobs: Value of the file -> the blob that holds it.
        inputs: An array for each input; None for random ones.
        seed: What random ones are made from.

    Raises:
        DataError: ONNX Runtime cannot load the file, or not run it.
    """
    result = Comparison(RUNTIME, [str(net.device)])
    given = random_inputs(net, seed) if inputs is None else dict(inputs)
    model = OnnxModel(path)
    theirs = {blobs[one.names[0]]: one.array for one in model.run(given) if one.names[0] in blobs}
    for look, differences in ((True, result.differences), (False, result.together)):
        found = run_net(net, net.device, given, backward=False, look=look, code=result.code)
        for one in found:
            name = one.wrote[0] if look else one.what.split("'")[1]
            if name not in theirs:
                continue
            expected = np.asarray(theirs[name], np.float32)
            what = f"top {name!r}" if look else f"output {name!r}, layers run as one"
            apart = gap(one.array, expected)
            differences.append(Difference(one.layer, one.type, what, str(net.device), apart))
    return result
