"""Launches, matrix products and bytes of a recorded step on a GPU, at full size; needs no GPU.

    python bench/gpu_traffic.py [CASE ...]            # lenet:64:step resnet50:32:step ...

Runs on the stand-in, whose GPU computes nothing here: the step is recorded, and what the recording
asks for is counted. Bytes are those of the arrays that kernels and products are given, each once,
and without cuDNN's. Convolutions go to a stand-in for cuDNN, by its default rules.
"""

import logging
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from case_net import CaseNet
from peers.cases import Case

from demitasse.core.device import Device

STAND_IN = Path(__file__).resolve().parents[1] / "tests" / "support"
CASES = ("lenet:64:step", "googlenet:32:step", "resnet50:32:step")
RECORDED = 3  # the step that is recorded
MEMORY = 1 << 40


class Traffic:
    """Counts what is asked of a GPU's engine while it records.

    Attributes:
        counts: "nodes" of the graph; "launches" of kernels, "products" and "megabytes" of both.
    """

    def __init__(self, backend: Any) -> None:
        self.counts: Counter[str] = Counter()
        engine, recorder = backend.engine, backend.recorder
        make, multiply, record = engine.function, engine.multiply, recorder.record

        def count(what: str, *arrays: Any) -> None:
            if engine.input_updates is not None:
                self.counts[what] += 1
                *read, last = arrays  # an array that stands for another is given twice
                sizes = {array.data.ptr: array.nbytes for array in read}
                self.counts["bytes"] += sum(sizes.values()) + last.nbytes

        def function(*args: Any) -> Any:
            launch = make(*args)

            def counted(*arrays: Any) -> None:
                count("launches", *arrays)
                launch(*arrays)

            return counted

        def product(one: Any, a: Any, b: Any, out: Any) -> None:
            count("products", a, b, out, *([out] if one.accumulate else []))
            multiply(one, a, b, out)

        def recorded(work: Any) -> Any:
            recording = record(work)
            self.counts["nodes"] += len(recording.graph.works)
            return recording

        engine.function, engine.multiply, recorder.record = function, product, recorded


def compute_nothing() -> None:
    """Have the stand-in leave out all work, and fit nets of any size."""
    machine = import_module("gpu.machine")
    machine.gpus[0].total = MEMORY
    add = machine.Queue.add
    machine.Queue.add = lambda self, work, after=(): add(self, lambda: None, after)


def main() -> None:
    """Print a line for each case."""
    logging.disable(logging.WARNING)
    sys.path.insert(0, str(STAND_IN))
    sys.modules["cudnn"] = frontend = import_module("cudnn_standin").Frontend()
    with import_module("gpu.package").in_place():
        machine = import_module("gpu.machine")
        frontend.submit = lambda stream, work: machine.queue_at(stream).add(work)
        compute_nothing()
        traffic = Traffic(Device("cuda:0").backend)
        for text in sys.argv[1:] or CASES:
            traffic.counts.clear()
            net = CaseNet(Case.parse(text, 1), "cuda:0")
            for _ in range(RECORDED):
                net.work()
            found = traffic.counts
            print(
                f"{text}: {found['nodes']} nodes, {found['launches']} launches, "
                f"{found['products']} products, {found['bytes'] / 1e6:.0f} MB"
            )


if __name__ == "__main__":
    main()
