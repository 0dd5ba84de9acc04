"""Everything to find out on a GPU that was never seen before, in one command.

    python bench/gpu_first_run.py > report.json

Sections that fail say why and do not stop the others. The report is JSON, on standard output;
progress goes to standard error. ``--dry-run`` runs on the host all that does not need a GPU, on
tiny nets, so that the script itself can be tried anywhere; ``--only NAME`` runs one section.

Needs demitasse with cupy; PyTorch and cuDNN's Python frontend are looked at where they are there.
"""

import argparse
import contextlib
import json
import logging
import platform
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import gpu_capture
import gpu_checks
import gpu_counts
import gpu_cudnn
import gpu_peers
import gpu_times

from demitasse.backends.cupy.library.detect import advice, look
from demitasse.core.device import Device

LIBRARIES = (
    "demitasse", "array-api-compat", "cupy-cuda13x", "cupy-cuda12x", "numpy", "nvidia-cublas",
    "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "protobuf", "torch",
)  # fmt: skip

ON_DEVICE: dict[str, Callable[[Device, bool], Any]] = {
    "random words": gpu_checks.randoms,
    "nets against the host": gpu_checks.nets,
    "training against the host": gpu_checks.training,
    "copies in an iteration": gpu_checks.moved,
    "host microseconds": gpu_times.overheads,
    "GB/s": gpu_times.traffic,
    "TFLOP/s": gpu_times.products,
    "milliseconds": gpu_times.steps,
    "milliseconds by layer": gpu_times.layers,
    "milliseconds by column budget": gpu_times.budgets,
    "with TF32": gpu_times.tf32,
    "requests of an iteration": gpu_counts.requests,  # last: what it counts with stays
}

ON_GPU_ALONE: dict[str, Callable[[Device, bool], Any]] = {
    "recordable": gpu_capture.recordable,
    "graphs": gpu_capture.graphs,
}

PEERS: dict[str, Callable[[Device, bool], Any]] = {
    "torch milliseconds": gpu_peers.torch_steps,
    "cudnn": gpu_cudnn.facts,
    "convolutions by cudnn": gpu_cudnn.convolutions,
    "cudnn and what is not finite": gpu_cudnn.not_finite,
}


def versions() -> dict[str, Any]:
    """What is installed, and on what."""
    found: dict[str, Any] = {"python": sys.version, "machine": platform.platform()}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    seen = look()
    found["cupy sees"] = vars(seen)
    if not seen.devices:
        found["advice"] = advice(seen)
    return found


def gpu(device: Device) -> dict[str, Any]:
    """The GPU and its memory."""
    cupy = import_module("cupy")
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    kept = {k: v for k, v in properties.items() if isinstance(v, (int, str))}
    return {**device.backend.pools.facts(), **kept}


def stand_in() -> Device:
    """The same kernels and Steps on the host, as the tests run them."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    device: Device = import_module("cuda_host").host_cuda()
    return device


def section(report: dict[str, Any], name: str, work: Callable[[], Any]) -> None:
    """Run one part of the report; what goes wrong in it is its result."""
    start = time.perf_counter()
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    try:
        report[name] = work()
    except Exception as error:
        report[name] = {"error": f"{type(error).__name__}: {error}"}
        report[name]["trace"] = traceback.format_exc().splitlines()[-12:]
    print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the host, without a GPU")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", metavar="NAME", help="run this section alone")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    dry: bool = options.dry_run
    report: dict[str, Any] = {"dry run": dry}
    section(report, "versions", versions)
    device = stand_in() if dry else Device(options.device)
    todo: dict[str, Callable[[], Any]] = {}
    if not dry:
        todo["gpu"] = lambda: gpu(device)
        todo |= {name: lambda w=work: w(device, dry) for name, work in ON_GPU_ALONE.items()}
    everywhere = {**ON_DEVICE, **PEERS}
    todo |= {name: lambda w=work: w(device, dry) for name, work in everywhere.items()}
    for name, work in todo.items():
        if options.only in (None, name):
            section(report, name, work)
    json.dump(report, sys.stdout, indent=1, default=str)
    print()
    failed = [
        name for name, result in report.items() if isinstance(result, dict) and "error" in result
    ]
    print(f"failed: {failed}" if failed else "all sections ran", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
