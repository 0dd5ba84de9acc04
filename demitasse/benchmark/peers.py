"""Other engines beside a case: ONNX Runtime and OpenVINO, on the ONNX export of its net.

The exported net has the case's random weights, so that an engine that computes something else is
found: the results of a first pass are compared before any time is taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from demitasse.benchmark.case import Case, with_batch
from demitasse.core.host import cores
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_export import export_onnx
from demitasse.net import Net
from demitasse.testing.comparison import random_inputs

__all__ = ["PEERS", "PeerCase", "installed_peers", "peer_versions"]

TOLERANCE = 1e-3
"""Largest accepted difference of results, relative to the largest value of an output."""

Inputs = Mapping[str, np.ndarray]
Infer = Callable[[], Mapping[str, np.ndarray]]


def _onnxruntime(path: Path, inputs: Inputs) -> Infer:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.log_severity_level = 3
    # threads that spin after a pass would take the cores of the engine whose turn is next
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    feed = dict(inputs)
    return lambda: dict(zip(names, session.run(names, feed), strict=True))


def _openvino(path: Path, inputs: Inputs) -> Infer:
    openvino = import_module("openvino")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": cores(),
    }
    request = openvino.compile_model(str(path), "CPU", settings).create_infer_request()

    def infer() -> dict[str, np.ndarray]:
        for name, array in inputs.items():
            request.set_tensor(name, openvino.Tensor(array))
        request.infer()
        outputs = request.model_outputs
        return {one.get_any_name(): request.get_tensor(one).data for one in outputs}

    return infer


PEERS: dict[str, Callable[[Path, Inputs], Infer]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
"""Peers by the name of their package; each loads a file and returns a function that runs it."""


def installed_peers() -> list[str]:
    """Return the names of the peers that are installed.

    Raises:
        NetError: None is installed.
    """
    found = [name for name in PEERS if find_spec(name)]
    if not found:
        names = " or ".join(PEERS)
        message = f"no peer is installed; install {names}: pip install 'demitasse[onnx]' openvino"
        raise NetError(message, code=ErrorCode.UNAVAILABLE, field="peers")
    return found


def peer_versions(names: list[str]) -> dict[str, str]:
    """Return the versions of peers by name."""
    return {name: metadata.version(name) for name in names}


class PeerCase:
    """A case of phase TEST on a peer, whose name stands in place of the device's.

    Args:
        case: The case.

    Raises:
        NetError: The peer computes other results, or the net has no ONNX form.
    """

    kinds: ClassVar = PEERS

    def __init__(self, case: Case) -> None:
        param = with_batch(case.net, case.phase, case.batch)
        with tempfile.TemporaryDirectory(prefix="demitasse_peer_") as folder:
            with Net(param, case.phase, device="cpu", seed=1, keep_blobs="outputs") as net:
                inputs = random_inputs(net, seed=0)
                for name, array in inputs.items():
                    net.set_input(name, array)
                net.forward()
                expected = {name: np.array(net.blobs[name].cpu_data()) for name in net.outputs}
                path = Path(folder) / "net.onnx"
                exported = export_onnx(net, None, path, batch="fixed")
            feed = {name: inputs[name].astype(np.float32) for name in exported.inputs}
            self._infer = self.kinds[case.device](path, feed)
            _check(self._infer(), expected, case.device)

    def once(self) -> float:
        """Return the seconds of one pass, with inputs and outputs in host memory."""
        begin = perf_counter()
        self._infer()
        return perf_counter() - begin

    def close(self) -> None:
        """Release the peer's memory."""
        del self._infer


def _check(found: Mapping[str, Any], expected: Inputs, peer: str) -> None:
    """Compare the results of a peer with those of the net.

    Raises:
        NetError: They differ, or no output has the name of one of the net's.
    """
    names = [name for name in expected if name in found]
    for name in names:
        want, got = expected[name], np.asarray(found[name]).reshape(expected[name].shape)
        difference = float(np.abs(got - want).max()) if want.size else 0.0
        if not difference <= TOLERANCE * max(1e-6, float(np.abs(want).max(initial=0.0))):
            message = f"{peer} differs from the net by {difference:.3g} in {name}"
            raise NetError(message, code=ErrorCode.FAILED, blob=name, peer=peer)
    if not names:
        message = f"{peer} has none of the net's outputs {', '.join(expected)}"
        raise NetError(message, code=ErrorCode.MISSING, field="outputs")
