"""Which engines there are, and what their processes are started with."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from peers.cases import Case

__all__ = ["DEFAULT", "PEAK", "TORCH", "Engine", "Kind", "find"]

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 36), "MALLOC_TRIM_THRESHOLD_": str(1 << 36)}
"""Keeps glibc from giving memory back to the system, and so from page faults in every pass."""


class Engine(Protocol):
    """One engine with one net, in its own process.

    Attributes:
        about: Versions and settings, for the report.
    """

    about: dict[str, Any]

    def check(self) -> dict[str, Any]:
        """Return the results that are compared with the right ones; called once, first.

        They are ``prob``; or ``losses`` before the first step and after it, and the first
        gradients.
        """

    def run(self) -> None:
        """Do one pass and wait for its end."""


@dataclass(frozen=True)
class Kind:
    """How an engine is made.

    Attributes:
        module: Where its class ``Measured`` is.
        options: What it is made with.
        environment: What its process has besides ours.
        trains: Whether it can do training steps.
    """

    module: str
    options: dict[str, Any]
    environment: dict[str, str]
    trains: bool = True

    def make(self, case: Case, folder: Any, threads: int) -> Engine:
        measured = import_module(self.module).Measured
        return measured(case, folder, threads, **self.options)


OURS = {"demitasse": "outputs", "demitasse-all": None, "demitasse-queued": None}
"""Which blobs are kept: what the net gives, or all of them as Caffe does."""

QUEUED = {"DEMITASSE_CUDA_GRAPHS": "off"}
"""Keeps a device from running a step as one graph or program."""

TORCH = {
    "torch": {},
    "torch-cl": {"channels_last": True},
    "torch-compile": {"compiled": True},
    "torch-compile-cl": {"channels_last": True, "compiled": True},
}
TUNED = "-tuned"
"""PyTorch as somebody runs it who knows it well: without page faults, with the fused update."""

PEAK = "peak"

DEFAULT = (
    "demitasse:cpu", "demitasse:numpy", "torch", "torch-cl", "torch-compile", "torch-tuned",
    "torch-cl-tuned", "torch-compile-tuned", "onnxruntime", "openvino", "opencv",
)  # fmt: skip


def find(name: str) -> Kind:
    """Return the engine of a name: ``demitasse:DEVICE``, ``torch-cl:cuda:0``, ``opencv``, ...

    Raises:
        ValueError: There is no such engine.
    """
    base, _, device = name.partition(":")
    if base in OURS:
        environment = QUEUED if base.endswith("-queued") else {}
        options = {"device": device or "cpu", "keep": OURS[base]}
        return Kind("peers.run_demitasse", options, environment)
    plain = base.removesuffix(TUNED)
    if plain in TORCH:
        tuned = base != plain
        options = TORCH[plain] | {"device": device or "cpu", "fused": tuned}
        return Kind("peers.run_torch", options, MALLOC if tuned else {})
    others = {
        "onnxruntime": Kind("peers.run_onnxruntime", {}, {}, trains=False),
        "openvino": Kind("peers.run_openvino", {}, {}, trains=False),
        "opencv": Kind("peers.run_opencv", {}, {}, trains=False),
        PEAK: Kind("peers.run_peak", {}, {}),
    }
    if name not in others:
        known = dict.fromkeys((*DEFAULT, *OURS, *TORCH, PEAK))
        message = f"there is no engine {name!r}; known are {', '.join(known)}"
        raise ValueError(message)
    return others[name]
