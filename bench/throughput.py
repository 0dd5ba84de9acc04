"""Images per second of nets over devices and batch sizes, and of the input that feeds them.

    python bench/throughput.py --devices cpu,cuda:0 --nets lenet,caffenet --batches 1,16,64,256
    python bench/throughput.py --input --devices cpu
    python bench/throughput.py --quick

JSON goes to standard output, a line for each measurement to standard error. Images come from
host memory in every pass, as new ones do, unless ``--resident`` leaves them on the device; every
pass is waited for. What does not fit into a device's memory is recorded and left out.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nets import NETS
from nets.classic import cifar10_quick
from nets.images import IMAGES

from demitasse import Net
from demitasse.device import Device
from demitasse.errors import DeviceError
from demitasse.proto import NetParameter, SolverParameter, parse_text
from demitasse.solvers import Solver

SOLVER = (
    'base_lr: 1e-6 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 '
    "snapshot_after_train: false"
)

EATERS: dict[str, tuple[int, Callable[[int, int], str]]] = {
    "raw28": (64, lambda batch, scale: NETS["lenet"](batch, True, scale)),
    "raw64": (100, lambda batch, scale: cifar10_quick(batch, True, scale, side=64)),
    "jpeg256": (32, lambda batch, scale: NETS["caffenet"](batch, True, scale)),
}
"""Kind of image -> batch and prototxt of a net that trains on such images."""


def main() -> None:
    """Measure what the command line asks for."""
    given = _arguments()
    logging.getLogger("demitasse").setLevel(logging.WARNING)
    try:
        found: dict[str, Any] = {"devices": {d: _about(d) for d in given.devices}, "passes": []}
    except DeviceError as error:
        sys.exit(str(error))
    for work in _passes(given):
        found["passes"].append(_told(work))
    if given.input:
        found["input"] = [_told(work) for work in _inputs(given)]
    print(json.dumps(found, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", type=_list, default=["lenet", "cifar10_quick", "caffenet"],
                        help=f"of {', '.join(NETS)}; none: no nets")  # fmt: skip
    parser.add_argument("--devices", type=_list, default=["cpu"], help="cpu, numpy, cuda:0, ...")
    parser.add_argument("--batches", type=_list, default=["1", "16", "64"])
    parser.add_argument("--modes", type=_list, default=["forward", "step"])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--resident", action="store_true", help="images stay on the device")
    parser.add_argument("--input", action="store_true", help="measure the input pipeline too")
    parser.add_argument("--quick", action="store_true", help="try the script on tiny nets")
    given = parser.parse_args()
    given.scale = 1
    if given.quick:
        given.scale, given.seconds, given.batches, given.input = 8, 0.05, ["2"], True
    given.nets = [name for name in given.nets if name != "none"]
    return given


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _about(name: str) -> dict[str, Any]:
    device = Device(name)
    return {"backend": type(device.backend).__name__, "memory": device.backend.memory_info()}


Work = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def _passes(given: argparse.Namespace) -> Iterator[Work]:
    """Yield each measurement of a net: what it is, and what makes it."""
    for name in given.nets:
        for mode in given.modes:
            for batch in map(int, given.batches):
                text = NETS[name](batch, mode == "step", given.scale)
                for device in given.devices:
                    about = {"net": name, "mode": mode, "batch": batch, "device": device}
                    yield about, lambda t=text, m=mode, d=device: _net(t, m, d, given)


def _inputs(given: argparse.Namespace) -> Iterator[Work]:
    for kind in IMAGES:
        for device in given.devices:
            about = {"images": kind, "device": device}
            yield about, lambda k=kind, d=device: _input(k, d, given)


def _told(work: Work) -> dict[str, Any]:
    """Do a measurement and say what came of it."""
    about, measure = work
    try:
        found = about | measure()
    except Exception as error:  # one that does not fit must not end the others
        found = about | {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    line = ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
    )
    print(line, file=sys.stderr, flush=True)
    return found


def _net(text: str, mode: str, device: str, given: argparse.Namespace) -> dict[str, Any]:
    if mode == "step":
        solver = _solver(text, device)
        net, work = solver.net, lambda: solver.step(1)
    else:
        net = Net(parse_text(text, NetParameter), "TEST", device=device, seed=1)
        work = net.forward
    inputs = _filled(net)

    def once() -> None:
        for blob in () if given.resident else inputs:
            blob.mutable_cpu_data()  # as if it were new
        work()
        if mode == "forward":
            net.blobs["prob"].cpu_data()
        net.synchronize()

    times = _times(once, given.seconds)
    batch = net.blobs["data"].shape[0]
    middle = statistics.median(times)
    return {
        "images per second": batch / middle,
        "milliseconds": middle * 1e3,
        "fastest milliseconds": min(times) * 1e3,
        "passes": len(times),
        "memory": net.device.backend.memory_info(),
    }


def _solver(text: str, device: str) -> Solver:
    param = parse_text(SOLVER, SolverParameter)
    param.net_param.CopyFrom(parse_text(text, NetParameter))
    return Solver(param, device=device, seed=1)


def _filled(net: Net) -> list[Any]:
    """Put random numbers and labels into the inputs of a net; return them."""
    rng = np.random.default_rng(0)
    blobs = [net.blobs[name] for name in ("data", "label") if name in net.blobs]
    for blob in blobs:
        host = blob.mutable_cpu_data()
        host[...] = (
            rng.integers(0, 10, host.shape) if host.ndim == 1 else rng.normal(size=host.shape)
        )
    return blobs


def _input(kind: str, device: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return images per second of reading alone, of the step alone, and of both together."""
    batch, text_of = EATERS[kind]
    batch = 2 if given.quick else batch
    eater = text_of(batch, given.scale)
    steps = _net(eater, "step", device, given)["images per second"]
    with tempfile.TemporaryDirectory(prefix="demitasse_bench_") as place:
        folder = Path(place) / "lmdb"
        IMAGES[kind].write(folder, batch * 16)
        reader = IMAGES[kind].net(folder, batch)
        with Net(parse_text(reader, NetParameter), "TRAIN", device=device, seed=1) as net:
            alone = _rate(net.forward, net, given.seconds)
        layers = [line for line in eater.splitlines() if 'type: "Input"' not in line]
        with _solver(reader + "\n".join(layers), device) as solver:
            both = _rate(lambda: solver.step(1), solver.net, given.seconds)
    return {
        "batch": batch,
        "read per second": alone,
        "trained per second": steps,
        "read and trained per second": both,
        "read for each trained": alone / steps,
    }


def _rate(work: Callable[[], Any], net: Net, seconds: float) -> float:
    """Return images per second of a net that reads its own, what was read ahead left out."""

    def once() -> None:
        work()
        net.blobs["data"].read()
        net.synchronize()

    times = _times(once, seconds)
    return net.blobs["data"].shape[0] * len(times) / sum(times)


def _times(work: Callable[[], Any], seconds: float) -> list[float]:
    """Return the seconds of each of some passes, after a few to warm up."""
    for _ in range(5):
        work()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
