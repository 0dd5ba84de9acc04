"""Host time of recorded passes and iterations on a GPU, in microseconds; needs no GPU.

    python bench/gpu_host_time.py [CASE ...]          # lenet:2:step resnet50:1:forward ...

Runs on the stand-in, where launches of graphs do nothing then: what is left is what the host does
for each. Widths are a sixteenth, since layers and not their sizes take the host's time.
"""

import logging
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path

from case_net import CaseNet
from peers.cases import Case

STAND_IN = Path(__file__).resolve().parents[1] / "tests" / "support"

CASES = ("lenet:2:step", "resnet50:1:step", "lenet:2:forward", "resnet50:1:forward")
SCALE, WARM, REPEATS = 16, 6, 300


def host_microseconds(case: Case) -> float:
    """Return the median time of one launch and what surrounds it."""
    work = CaseNet(case, "cuda:0").work
    for _ in range(WARM):
        work()
    graph = import_module("gpu.graphs").Graph
    launch = graph.launch
    graph.launch = lambda self, stream=None: None
    try:
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
    finally:
        graph.launch = launch
    return statistics.median(times) * 1e6


def main() -> None:
    """Print a line for each case."""
    logging.disable(logging.INFO)
    sys.path.insert(0, str(STAND_IN))
    with import_module("gpu.package").in_place():
        for text in sys.argv[1:] or CASES:
            print(f"{text}: {host_microseconds(Case.parse(text, SCALE)):.0f} us of the host")


if __name__ == "__main__":
    main()
