"""Other engines beside a case: ONNX Runtime and OpenVINO, on the ONNX export of its net.

The exported net has the weights of the case, so that an engine that computes something else is
found: the results of a first pass are compared before any time is taken.
"""

import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import numpy as np

from demitasse.benchmark.case import Case, load_values, with_batch
from demitasse.core.extras import missing_extra
from demitasse.core.host import host_memory
from demitasse.core.text import bytes_text
from demitasse.core.threads import wanted_threads
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop.onnx_export import export_onnx
from demitasse.net import Net
from demitasse.testing.comparison import random_inputs
from demitasse.testing.error_stats import error_stats
from demitasse.testing.reference.onnx import onnx_library

TOLERANCE = 1e-3
"""Largest accepted difference of results, relative to the largest value of an output."""

Inputs = Mapping[str, np.ndarray]
Infer = Callable[[], Mapping[str, np.ndarray]]


def _onnxruntime(path: Path, inputs: Inputs, threads: int) -> Infer:
    onnxruntime = onnx_library("onnxruntime", "measuring ONNX Runtime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    feed = dict(inputs)
    return lambda: dict(zip(names, session.run(names, feed), strict=True))


def _openvino(path: Path, inputs: Inputs, threads: int) -> Infer:
    openvino = import_module("openvino")
    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
    }  # fmt: skip
    model = openvino.compile_model(str(path), "CPU", settings)
    request, names = model.create_infer_request(), [one.get_any_name() for one in model.outputs]
    feed = dict(inputs)

    def infer() -> dict[str, np.ndarray]:
        results = request.infer(feed, share_inputs=True, share_outputs=True)
        return dict(zip(names, results.to_tuple(), strict=True))

    return infer


PEERS = {"onnxruntime": _onnxruntime, "openvino": _openvino}
"""Peers by the name of their package: each loads a file and returns a function of its results.

Inputs are arrays that stay in place; a number of threads runs each pass. Results are overwritten by
the next pass.
"""


def installed_peers() -> list[str]:
    """Return the names of the peers that are installed, at least one."""
    found = [name for name in PEERS if find_spec(name)]
    if not found:
        raise missing_extra(
            ConfigError, "comparing with peers", "ONNX Runtime", "onnx",
            instead="install openvino", field="peers",
        )  # fmt: skip
    return found


def peer_versions(names: list[str]) -> dict[str, str]:
    """Return the versions of peers by name."""
    return {name: metadata.version(name) for name in names}


class PeerCase:
    """A case of phase TEST on a peer, whose name stands in place of the device's."""

    def __init__(self, case: Case) -> None:
        param = with_batch(case.net, case.phase, case.batch)
        with tempfile.TemporaryDirectory(prefix="demitasse_peer_") as folder:
            with Net(
                param, case.phase, device="cpu", seed=1, base_dir=case.net.parent,
                keep_blobs="outputs",
            ) as net:  # fmt: skip
                load_values(net, case.net)
                inputs = random_inputs(net, seed=0)
                for name, array in inputs.items():
                    net.set_input(name, array)
                _need_memory(net, case.device)
                net.forward()
                expected = {name: np.array(net.blobs[name].cpu_data()) for name in net.outputs}
                path = Path(folder) / "net.onnx"
                exported = export_onnx(net, None, path, batch="fixed")
            feed = {name: inputs[name].astype(np.float32) for name in exported.inputs}
            self._infer = PEERS[case.device](path, feed, wanted_threads())
            _check(self._infer(), expected, case.device)

    def once(self) -> float:
        """Return the seconds of one pass, with inputs and outputs in host memory."""
        begin = perf_counter()
        self._infer()
        return perf_counter() - begin

    def close(self) -> None:
        """Release the peer's memory."""
        del self._infer


def _need_memory(net: Net, peer: str) -> None:
    """Raise a NetError if all blobs, of which net and peer reuse some, exceed free memory."""
    needed = sum(blob.data_memory.nbytes for blob in net.structure.blob_list)
    free = host_memory().free
    if free is not None and needed > free:
        message = (
            f"{peer} may take {bytes_text(needed)}, and {bytes_text(free)} are free; measure a "
            "smaller batch"
        )
        raise NetError(message, code=ErrorCode.LIMIT, peer=peer)


def _check(found: Mapping[str, np.ndarray], expected: Inputs, peer: str) -> None:
    """Compare the results of a peer with those of the net, by the names of the outputs."""
    names = [name for name in expected if name in found]
    for name in names:
        want = expected[name]
        error = error_stats(np.reshape(found[name], want.shape), want).relative
        if error > TOLERANCE:
            message = f"{peer} differs from the net by {error:.3g} of the largest value in {name}"
            raise NetError(message, code=ErrorCode.FAILED, blob=name, peer=peer)
    if not names:
        message = f"{peer} has none of the net's outputs {', '.join(expected)}"
        raise NetError(message, code=ErrorCode.MISSING, field="outputs")
