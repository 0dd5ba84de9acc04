"""The same nets in PyTorch, eagerly, where it is installed."""

import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from demitasse.core.device import Device

__all__ = ["torch_steps"]


def torch_steps(device: Device, dry: bool) -> dict[str, Any]:
    """Iterations of LeNet and CaffeNet (LRN and groups included), in milliseconds."""
    del device
    torch = import_module("torch")
    found: dict[str, Any] = {"version": torch.__version__}
    if dry:
        return found
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        for name, batch in (("lenet", 1), ("lenet", 64), ("caffenet", 1), ("caffenet", 256)):
            make, shape = (_lenet, (1, 28, 28)) if name == "lenet" else (_caffenet, (3, 227, 227))
            net = make(torch).cuda()
            x = torch.randn(batch, *shape, device="cuda")
            label = torch.randint(0, 10, (batch,), device="cuda")
            update = torch.optim.SGD(net.parameters(), 0.001, 0.9, weight_decay=0.0005)
            step = _step(torch, net, x, label, update)
            repeats = 100 if name == "lenet" else 20
            found[f"{name} {batch} tf32={tf32}"] = _median(torch, step, repeats)
            del net, x, label, update, step
            torch.cuda.empty_cache()
    return found


def _step(torch: Any, net: Any, x: Any, label: Any, update: Any) -> Callable[[], None]:
    def step() -> None:
        update.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(x), label).backward()
        update.step()

    return step


def _median(torch: Any, step: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats + 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:]) * 1e3


def _lenet(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 500), nn.ReLU(True), nn.Linear(500, 10),
    )  # fmt: skip


def _caffenet(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.ReLU(True), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
        nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(True), nn.MaxPool2d(3, 2),
        nn.LocalResponseNorm(5), nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(True),
        nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(True),
        nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(True), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(True), nn.Dropout(),
        nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 1000),
    )  # fmt: skip
