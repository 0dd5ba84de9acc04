"""What we compare with the strongest peers, in parts that can be run apart."""

from dataclasses import dataclass

from nets import OTHERS

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True)
class Part:
    """One of the parts.

    Attributes:
        cases: What is measured.
        engines: With what, ours first.
        loops: Busy loops that the engines are measured beside, after they were measured alone.
        start: Whether the start of a process is measured, and not its passes.
    """

    cases: tuple[str, ...]
    engines: tuple[str, ...]
    loops: int = 0
    start: bool = False


IMAGES = (
    "googlenet", "caffenet", "vgg16", "resnet18", "resnet50", "squeezenet", "mobilenet",
    "densenet121", "ssd_mobilenet", "fcn", "segnet", "lrcn", "grey",
)  # fmt: skip
STEPS = (
    "lenet:64", "cifar10_quick:100", "resnet20:64", "caffenet:32", "googlenet:8", "vgg16:4",
    "resnet18:8", "resnet50:8", "mobilenet:8", "densenet121:4", "grey:32", "mobilenet_v2:8",
    "shufflenet:8", "resnext50:4",
)  # fmt: skip
PEERS = ("demitasse:cpu", "torch", "onnxruntime", "openvino")

PARTS = {
    "forward": Part(
        tuple(f"{net}:{batch}:forward" for net in IMAGES for batch in (1, 8)),
        ("demitasse:cpu", "demitasse-all:cpu", *PEERS[1:]),
    ),
    "others": Part(
        tuple(f"{net}:{batch}:forward" for net in OTHERS for batch in (1, 8)),
        ("demitasse:cpu", *PEERS[2:]),
    ),
    "step": Part(
        tuple(f"{case}:step" for case in STEPS),
        ("demitasse:cpu", "torch", "torch-cl", "torch-compile"),
    ),
    "jax": Part(
        ("lenet:64:step", "cifar10_quick:100:step", "resnet20:64:step", "googlenet:8:step"),
        ("demitasse-all:cpu", "demitasse-all:jax:cpu", "demitasse-queued:jax:cpu", "torch"),
    ),
    "busy": Part(
        (
            "lenet:1:forward",
            "squeezenet:1:forward",
            "mobilenet:1:forward",
            "googlenet:1:forward",
            "lenet:64:forward",
            "lenet:64:step",
            "resnet20:64:step",
        ),
        PEERS,
        loops=8,
    ),
    "start": Part(
        ("lenet:1:forward", "googlenet:1:forward", "resnet50:1:forward"), PEERS, start=True
    ),
}
