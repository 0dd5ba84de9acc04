"""The machine, and what is installed on it: ``python -m peers.facts`` prints JSON."""

import contextlib
import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

__all__ = ["facts"]

LIBRARIES = (
    "demitasse", "llvmlite", "numpy", "torch", "onnxruntime", "openvino", "onnx",
    "opencv-python-headless", "protobuf", "jax", "cupy-cuda13x", "cupy-cuda12x",
)  # fmt: skip

CPU = Path("/sys/devices/system/cpu/cpu0")


def facts() -> dict[str, Any]:
    """Return all of it."""
    import numpy as np

    from demitasse.backends.cpu import status
    from demitasse.cli.commands.doctor import blas
    from demitasse.core.config import TABLE

    np.ones((300, 300), np.float32) @ np.ones((300, 300), np.float32)  # chooses its kernels
    found, known = blas(), TABLE.values()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads of the processor": psutil.cpu_count(),
        "cores this process may use": len(psutil.Process().cpu_affinity()),
        "governor": _text(CPU / "cpufreq/scaling_governor") or "not readable",
        "memory GiB": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "C library": " ".join(platform.libc_ver()),
        "Python": sys.version.split()[0],
        "numpy's BLAS": f"{found['name']} {found['version']}, kernels {found['kernel']}",
        "kernels": str(status()),
        "versions": _versions(),
        "settings": {s.variable: os.environ[s.variable] for s in known if s.variable in os.environ},
    }


def _processor() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            family = [_field(name) for name in ("cpu family", "model")]
            return f"{line.partition(':')[2].strip()} (family {family[0]}, model {family[1]})"
    return platform.processor()


def _field(name: str) -> str:
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    found = [line.partition(":")[2].strip() for line in lines if line.split("\t")[0] == name]
    return found[0] if found else "?"


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


if __name__ == "__main__":
    print(json.dumps(facts()))
