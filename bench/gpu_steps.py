"""Milliseconds of steps and passes on a GPU, beside PyTorch's in the same process, in turns."""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from case_net import RATE, CaseNet
from peers.cases import DECAY, MOMENTUM, Case

from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text

__all__ = ["options", "steps"]

CASES = (
    "lenet:64:step", "resnet50:32:step", "googlenet:32:step", "caffenet:64:step",
    "mobilenet:32:step", "cifar10_quick:100:step", "resnet50:1:forward", "googlenet:1:forward",
    "resnet50:32:forward", "vgg16:16:step",
)  # fmt: skip
REHEARSED = ("lenet:2:step", "cifar10_quick:2:forward")

OURS: dict[str, dict[str, Any]] = {
    "default": {"tf32": "auto"},
    "timed": {"tf32": "auto", "cudnn_autotune": True},
    "exact": {"tf32": "off"},
    "exact, timed": {"tf32": "off", "cudnn_autotune": True},
    "bfloat16": {"gpu_storage_dtype": "bfloat16"},
    "bfloat16, timed": {"gpu_storage_dtype": "bfloat16", "cudnn_autotune": True},
}
"""Settings by mode."""

TORCH = {
    "torch": (True, False, False, False),
    "torch exact": (False, False, False, False),
    "torch TF32 channels last": (True, True, True, False),
    "torch bfloat16 channels last": (True, True, True, True),
}
"""TF32 in convolutions, in products; channels last; autocast to bfloat16. Each runs eagerly."""

OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "channels_last": (
        ("resnet50:32:step", "resnet50:32:forward", "vgg16:16:step"), ("default", "bfloat16"),
    ),
    "cublas_bias": (("caffenet:64:step",), ("default", "bfloat16")),
}  # fmt: skip
"""Settings that are off by default; cases and modes in which they are measured."""

ROUNDS, TURN, MOST = 3, 0.15, 100

Work = Callable[[], None]


def steps(device: Device, dry: bool) -> dict[str, Any]:
    """Medians of all modes in milliseconds, and how often ours is faster than the best of torch."""
    found: dict[str, Any] = {}
    for text in REHEARSED if dry else CASES:
        case = Case.parse(text, 8 if dry else 1)
        works, batch = _ours(case, device, OURS)
        with contextlib.suppress(ImportError):
            if not dry:
                works |= _torch(case, *batch)
        row = found[text] = _interleaved(works, 0.01 if dry else TURN)
        peers = [time for mode, time in row.items() if mode.startswith("torch")]
        if peers:
            row["default torch / default"] = round(row["torch"] / row["default"], 2)
            row["best torch / best"] = round(
                min(peers) / min(time for mode, time in row.items() if mode in OURS), 2
            )
    return found


def options(device: Device, dry: bool) -> dict[str, Any]:
    """Medians with each option off and on, in milliseconds, and which default is right.

    A gain is the time without the option, divided by that with it.
    """
    found: dict[str, Any] = {}
    for option, (cases, modes) in OPTIONS.items():
        found[option] = {}
        for text in REHEARSED if dry else cases:
            chosen = {
                f"{mode}, {state}": OURS[mode] | {option: state == "on"}
                for mode in modes
                for state in ("off", "on")
            }
            works, _ = _ours(Case.parse(text, 8 if dry else 1), device, chosen)
            found[option][text] = row = _interleaved(works, 0.01 if dry else TURN)
            for mode in modes:
                row[f"{mode}, gain"] = round(row[f"{mode}, off"] / row[f"{mode}, on"], 3)
        found[option]["right default"] = {
            mode: right_default([row[f"{mode}, gain"] for row in found[option].values()])
            for mode in modes
        }
    return found


def right_default(gains: Sequence[float]) -> str:
    """Return "on" for 3 % on two cases or 10 % on one, and a cost of more than 1 % on none."""
    pays = sum(gain >= 1.03 for gain in gains) >= 2 or max(gains) >= 1.1
    return "on" if pays and min(gains) >= 0.99 else "off"


def _interleaved(works: dict[str, Work], turn: float) -> dict[str, float]:
    """Return the median milliseconds of each piece of work, which take turns."""
    times: dict[str, list[float]] = {mode: [] for mode in works}
    for work in works.values():
        for _ in range(6):  # prepare, compile, record
            work()
    for _ in range(ROUNDS):
        for mode, work in works.items():
            work()
            end = time.perf_counter() + turn
            for _ in range(MOST):
                begin = time.perf_counter()
                work()
                times[mode].append(time.perf_counter() - begin)
                if time.perf_counter() > end:
                    break
    return {mode: round(statistics.median(some) * 1e3, 4) for mode, some in times.items()}


def _ours(
    case: Case, device: Device, modes: dict[str, dict[str, Any]]
) -> tuple[dict[str, Work], tuple[Any, ...]]:
    """Return the work of each mode, and its batch and weights; ``modes`` are settings by name."""
    message = parse_text(case.prototxt(), NetParameter)
    works: dict[str, Work] = {}
    batch: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    for mode, chosen in modes.items():
        with settings.override(**chosen):
            made = CaseNet(case, device)
            batch = {blob.name: np.array(blob.cpu_data()) for blob in made.inputs}
        weights = weights or {
            f"{layer.name}/{index}": np.array(blob.cpu_data())
            for layer in made.net.layers
            for index, blob in enumerate(layer.blobs)
        }

        def work(made: CaseNet = made, chosen: dict[str, Any] = chosen) -> None:
            with settings.override(**chosen):
                made.work()
                made.net.synchronize()

        works[mode] = work
    return works, (message, batch, weights)


def _torch(
    case: Case, message: NetParameter, batch: dict[str, np.ndarray], weights: dict[str, np.ndarray]
) -> dict[str, Work]:
    torch = import_module("torch")
    twin = import_module("peers.twin").twin
    works: dict[str, Work] = {}
    for mode, (tf32, products, last, narrow) in TORCH.items():
        layout = torch.channels_last if last else torch.contiguous_format
        net = twin(message, weights, case.train).cuda().to(memory_format=layout)
        data = torch.from_numpy(batch["data"]).cuda().to(memory_format=layout)
        label = torch.from_numpy(batch["label"]).long().cuda() if case.train else None
        update = torch.optim.SGD(net.parameters(), RATE, MOMENTUM, weight_decay=DECAY, foreach=True)

        def work(
            net: Any = net, data: Any = data, label: Any = label, update: Any = update,
            modes: tuple[bool, bool, bool] = (tf32, products, narrow),
        ) -> None:  # fmt: skip
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cast = modes
            if label is None:
                with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=cast):
                    net(data)
            else:
                update.zero_grad()
                with torch.autocast("cuda", torch.bfloat16, enabled=cast):
                    loss = net(data, label)
                loss.backward()
                update.step()
                loss.item()
            torch.cuda.synchronize()

        works[mode] = work
    return works
