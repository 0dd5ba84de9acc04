"""Times of passes over a net, whole and layer by layer, as numbers and as tables.

Source: Caffe, ``tools/caffe.cpp`` (``time``).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from demitasse.benchmark.measure import peak, seconds_of
from demitasse.cli.render import table
from demitasse.core.config import settings
from demitasse.core.log import get_logger, number
from demitasse.core.text import bytes_text
from demitasse.net import Net
from demitasse.plan.report import LayerReport, Stopwatch, report

log = get_logger(__name__)

WARMUP_PASSES = 2
"""Unmeasured first passes, which compile kernels and build plans."""

WARMUP_PASSES_QUEUED = 4
"""Unmeasured passes of a device with a queue; graph capture happens in the last ones."""


@dataclass(frozen=True)
class Timing:
    """Mean times of passes and layers, and the total of all passes, in milliseconds.

    Attributes:
        layers: Each layer with the times of its forward and backward pass; the time of fused layers
            is at the first of the layers.
        peak: GFLOP/s of a large matrix product on the device.
        capture_status: A sentence on CUDA graph capture; empty for other devices.
    """

    iterations: int
    forward: float
    backward: float | None
    total: float
    layers: Sequence[tuple[LayerReport, float, float | None]]
    peak: float
    capture_status: str

    def log(self) -> None:
        """Log the times in Caffe's lines."""
        log.info("Average time per layer: ")
        for layer, forward, backward in self.layers:
            log.info("%10s\tforward: %s ms.", layer.name, number(forward))
            if backward is not None:
                log.info("%10s\tbackward: %s ms.", layer.name, number(backward))
        log.info("Average Forward pass: %s ms.", number(self.forward))
        if self.backward is not None:
            log.info("Average Backward pass: %s ms.", number(self.backward))
            log.info("Average Forward-Backward: %s ms.", number(self.forward + self.backward))
        log.info("Total Time: %s ms.", number(self.total))

    def as_dict(self) -> dict[str, Any]:
        """Return the times for JSON."""
        layers = [
            {**asdict(layer), "forward_ms": forward, "backward_ms": backward}
            for layer, forward, backward in self.layers
        ]
        return {
            "iterations": self.iterations, "forward_ms": self.forward,
            "backward_ms": self.backward, "total_ms": self.total, "peak_gflops": self.peak,
            "launching": self.capture_status, "layers": layers,
        }  # fmt: skip


def measure_net(net: Net, iterations: int, *, backward: bool = True) -> Timing:
    """Measure passes over a net; gradients start at zero in each pass, as in training."""

    def run() -> tuple[float, float]:
        forward_time, backward_time = seconds_of(net, net.forward), 0.0
        if backward:
            net.clear_param_diffs()
            backward_time = seconds_of(net, lambda: net.backward(-1))
        return 1e3 * forward_time, 1e3 * backward_time

    for _ in range(WARMUP_PASSES_QUEUED if net.device.backend.queues else WARMUP_PASSES):
        run()
    layers, status = report(net.plan), capture_status(net)
    begin, times = perf_counter(), []
    for index in range(iterations):
        times.append(run())
        passes = "forward-backward" if backward else "forward"
        log.info("Iteration: %d %s time: %s ms.", index + 1, passes, number(sum(times[-1])))
    total = 1e3 * (perf_counter() - begin)
    forward_mean, backward_mean = (sum(column) / iterations for column in zip(*times, strict=True))
    with Stopwatch(net.plan, net.synchronize) as watch:
        for _ in range(iterations):
            run()
    needs = net.structure.needs.layers
    rows = [
        (layer, 1e3 * there / iterations, 1e3 * back / iterations if backward and need else None)
        for layer, there, back, need in zip(
            layers, watch.forward, watch.backward, needs, strict=True
        )
    ]
    return Timing(
        iterations, forward_mean, backward_mean if backward else None, total, rows,
        peak(net.device, net.dtype), status,
    )  # fmt: skip


HEAD = ("layer", "type", "forward runs", "backward runs")


def _mark(layer: LayerReport, numbers: dict[str, int]) -> str:
    """Return why no faster code runs a layer, as numbers of reasons, such as ``[1] [2]``."""
    alone = f"not fused with the next: {layer.why_not_fused}" if layer.why_not_fused else ""
    reasons = filter(None, (layer.why, alone))
    return " ".join(f"[{numbers.setdefault(reason, len(numbers) + 1)}]" for reason in reasons)


def _reasons_text(numbers: dict[str, int]) -> str:
    if not numbers:
        return ""
    said = "\n".join(f"[{number}] {reason}" for reason, number in numbers.items())
    return f"\n\nWhy no faster code runs:\n{said}"


def layer_table(layers: Sequence[LayerReport]) -> str:
    """Return a table of the code of each layer, bytes of a forward pass, and reasons."""
    head = (*HEAD, "bytes", "scratch", "why")
    reasons: dict[str, int] = {}
    rows = [
        (*_code_cells(layer), _size(layer.bytes), _size(layer.workspace), _mark(layer, reasons))
        for layer in layers
    ]
    return table(head, rows, whole=head[:2]) + _reasons_text(reasons)


def timing_table(timing: Timing) -> str:
    """Return a table of the code and times of each layer, and shares of the device's peak."""
    head = (*HEAD, "forward", "backward", "of peak", "bytes", "why")
    reasons: dict[str, int] = {}
    rows: list[tuple[object, ...]] = []
    for layer, forward, backward in timing.layers:
        if layer.part_of and not backward:
            rows.append((*_code_cells(layer), None, None, "", "", ""))
            continue
        spent = (0.0 if layer.part_of else forward) + (backward or 0.0)
        work = layer.multiply_adds + (0 if backward is None else layer.backward_multiply_adds)
        moved = layer.bytes + (0 if backward is None else layer.backward_bytes)
        share = ""
        if work and spent and timing.peak:
            share = f"{2 * work / (spent * 1e6) / timing.peak:.0%}"
        first = None if layer.part_of else forward
        rows.append(
            (*_code_cells(layer), first, backward, share, _size(moved), _mark(layer, reasons))
        )
    launching = f"\n\n{timing.capture_status}" if timing.capture_status else ""
    return (
        f"{table(head, rows, whole=head[:2])}{_reasons_text(reasons)}{launching}\n\n"
        "Times in ms. A large matrix product reaches "
        f"{timing.peak:.0f} GFLOP/s here; 'of peak' is the layer's work, by definition, as a share "
        "of that. Algorithms with fewer operations can exceed 100%."
    )


def _code_cells(layer: LayerReport) -> tuple[str, str, str, str]:
    forward = f"in {layer.part_of}" if layer.part_of else layer.code
    return layer.name, layer.type, forward, layer.backward_code


def _size(count: int) -> str:
    return bytes_text(count) if count else ""


def capture_status(net: Net) -> str:
    """Return a sentence on CUDA graph capture of a net; "" for devices other than GPUs."""
    if net.device.backend.recorder is None or net.device.shares_host:
        return ""
    off = "the setting cuda_graphs is off" if settings.get("cuda_graphs") == "off" else ""
    if why := off or net.execution.passes.capture_blocker():
        return f"Passes are queued kernel by kernel, not captured as a CUDA graph: {why}."
    return "Passes are captured as a CUDA graph when shapes and buffers stay the same."
