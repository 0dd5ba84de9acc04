"""Can a pass be recorded into a CUDA graph, and what does that save?

Needs a GPU. Nothing may be allocated that is freed while a graph still uses it, so a pass is
recorded with a memory pool of its own.
"""

import time
from collections.abc import Callable
from typing import Any

import gpu_nets
import numpy as np

from demitasse.backends.cupy.library.cublas import Product
from demitasse.core.device import Device

__all__ = ["graphs", "recordable"]


def recordable(device: Device, dry: bool) -> dict[str, str]:
    """Which calls can be recorded: "yes", or the error."""
    del dry
    import cupy

    backend, engine = device.backend, device.backend.engine
    array, other = (backend.zeros(64 * 64, "float32").reshape(64, 64) for _ in range(2))
    out = backend.zeros(64 * 64, "float32")
    host = backend.empty_host(64 * 64, "float32")
    product = Product("float32", 64, 64, 64)
    relu = engine.elementwise("activation", "relu", "float32", 64 * 64, 0.0)

    def add() -> None:
        nonlocal array
        array += other

    calls: dict[str, Callable[[], Any]] = {
        "our kernel": lambda: relu(array, other),
        "our product": lambda: engine.multiply(product, array, other, out),
        "random words": lambda: backend.random_bits(1, 2, 3, 1000),
        "cupy in place": add,
        "cupy sum": lambda: cupy.sum(array),
        "cupy sum of an axis": lambda: cupy.sum(array, axis=0),
        "cupy matmul": lambda: cupy.matmul(array, other),
        "cupy where": lambda: cupy.where(array > 0, array, other),
        "upload": lambda: backend.upload(host, out),
    }
    return {name: _record(call)[1] for name, call in calls.items()}


def _record(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return the graph of a call, and "yes" or why there is none."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # such a stream does not wait for what others have queued
    with stream, cupy.cuda.using_allocator(pool.malloc):
        for _ in range(2):  # compile, load libraries, make handles
            call()
        stream.synchronize()
        stream.begin_capture()
        said = "yes"
        try:
            call()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        try:
            graph = stream.end_capture()
        except Exception as error:
            return None, f"{said}; at the end {type(error).__name__}: {error}"
    return (graph, stream, pool), said


def graphs(device: Device, dry: bool) -> dict[str, Any]:
    """Forward and backward recorded once and run often: the same numbers? how fast?

    Dropout's masks are those of the recorded pass: only nets without it are compared.
    """
    found: dict[str, Any] = {}
    for name, batch, scale in [case for case in gpu_nets.cases(dry) if case[0] == "lenet"]:
        net = gpu_nets.net_of(name, device, batch, scale)
        plan, last = net.plan, len(net.layers) - 1

        def work(plan=plan, last=last, net=net) -> None:
            net.clear_param_diffs()
            plan.forward(0, last)
            plan.backward(last, 0)

        with device.backend.enter():
            kept, said = _record(work)
            found[f"{name} {batch}"] = {"recorded": said}
            if kept is None:
                continue
            graph, stream, _ = kept
            wanted = [blob.cpu_diff().copy() for blob in net.learnable_params]
            graph.launch(stream)
            stream.synchronize()
            got = [device.backend.to_host(blob.gpu_diff()) for blob in net.learnable_params]
            pairs = zip(got, wanted, strict=True)
            found[f"{name} {batch}"] |= {
                "equal": all(np.array_equal(a, b) for a, b in pairs),
                "microseconds": _launches(graph, stream, 10 if dry else 500),
            }
    return found


def _launches(graph: Any, stream: Any, repeats: int) -> float:
    graph.launch(stream)
    stream.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        graph.launch(stream)
    stream.synchronize()
    return (time.perf_counter() - start) / repeats * 1e6
