"""How long things take: on the host, over the bus, on the GPU."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import gpu_nets

from demitasse.backends.cupy.library.cublas import Product
from demitasse.backends.cupy.library.engine import Engine
from demitasse.blob import Blob
from demitasse.core.device import Device

__all__ = ["layers", "overheads", "products", "traffic"]


def timed(device: Device, work: Callable[[], Any], repeats: int) -> float:
    """Median time of a call in microseconds, until the device is done with it."""
    work()
    device.backend.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        device.backend.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def queued(device: Device, work: Callable[[], Any], repeats: int) -> float:
    """Time the host needs for a call, in microseconds, without waiting for the device."""
    work()
    device.backend.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    spent = time.perf_counter() - start
    device.backend.synchronize()
    return spent / repeats * 1e6


def overheads(device: Device, dry: bool) -> dict[str, float]:
    """What the host pays for each kind of call, in microseconds."""
    repeats = 3 if dry else 2000
    backend, xp = device.backend, device.backend.xp
    blob = Blob((4, 8), "float32", device)
    array, other = blob.buffer(), backend.asarray(blob.cpu_data())

    def enter() -> None:
        with backend.enter():
            pass

    found = {
        "Blob.read": blob.read,
        "Blob.buffer": blob.buffer,
        "Blob.write": lambda: blob.write(other),
        "xp add": lambda: array + other,
        "xp sum": lambda: xp.sum(array),
        "xp matmul": lambda: xp.matmul(array, other.T),
        "enter": enter,
        "synchronize": backend.synchronize,
    }
    engine = backend.engine
    if isinstance(engine, Engine):
        relu = engine.elementwise("activation", "relu", "float32", 32, 0.0)
        product, out = Product("float32", 4, 4, 8, transpose_b=True), backend.zeros(16, "float32")
        found |= {
            "our kernel": lambda: relu(array, other),
            "our product": lambda: engine.multiply(product, array, other, out),
            "scratch": lambda: engine.scratch("float32", 100, 100),
            "upload of 4 bytes": lambda: backend.upload(host, scalar),
            "asarray of 4 bytes": lambda: backend.asarray(host),
        }
        host, scalar = backend.empty_host(1, "float32"), backend.zeros(1, "float32")
    return {name: queued(device, work, repeats) for name, work in found.items()}


def traffic(device: Device, dry: bool) -> dict[str, float]:
    """Copies in GB/s."""
    size = 1000 if dry else 1 << 28
    backend = device.backend
    host, array = backend.empty_host(size, "float32"), backend.zeros(size, "float32")
    other = backend.zeros(size, "float32")
    nbytes = host.nbytes

    def copy() -> None:
        other[...] = array

    found = {
        "to device": (lambda: backend.upload(host, array), nbytes),
        "to host": (lambda: backend.download(array, host), nbytes),
        "on device, read and written": (copy, 2 * nbytes),
    }
    return {name: size / timed(device, work, 5) / 1e3 for name, (work, size) in found.items()}


def products(device: Device, dry: bool) -> dict[str, float]:
    """Matrix products in TFLOP/s: large ones, and those of CaffeNet's layers at batch 256."""
    engine, found = device.backend.engine, {}
    if not isinstance(engine, Engine):
        return found
    sizes = {
        "square": (4096, 4096, 4096, 1),
        "conv1 chunk": (96, 64 * 3025, 363, 1),
        "conv2 chunk": (128, 64 * 729, 1200, 2),
        "fc6": (256, 4096, 9216, 1),
    }
    for name, size in sizes.items():
        m, n, k, batch = (3, 4, 5, 2) if dry else size
        a, b, out = (
            device.backend.zeros(batch * count, "float32") for count in (m * k, k * n, m * n)
        )
        product = Product("float32", m, n, k, batch=batch)
        spent = timed(device, lambda p=product, x=(a, b, out): engine.multiply(p, *x), 10)
        found[name] = 2 * m * n * k * batch / spent / 1e6
    return found


def layers(device: Device, dry: bool) -> dict[str, Any]:
    """Each layer of CaffeNet, forward and backward, in milliseconds."""
    name, batch, scale = list(gpu_nets.cases(dry))[-1]
    net = gpu_nets.net_of(name, device, batch, scale)
    net.forward()
    net.backward(-1)
    found = {}
    for index, layer in enumerate(net.layer_names):
        forward = timed(device, lambda i=index: net.forward(i, i), 3)
        found[layer] = {"forward": forward / 1e3}
        if net.structure.needs.layers[index]:
            backward = timed(device, lambda i=index: net.backward(i, i), 3)
            found[layer]["backward"] = backward / 1e3
    return found
