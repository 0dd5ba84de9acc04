"""What is measured: nets, batch sizes, passes; and what we aim at."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from nets import FORWARD_ONLY, NETS, OTHERS, TRAINED

__all__ = [
    "AIMS", "DECAY", "DEFAULT", "MOMENTUM", "QUICK", "SMALL", "Aim", "Case", "choose",
]  # fmt: skip

MODES = ("forward", "step")
KNOWN = NETS | FORWARD_ONLY | OTHERS

MOMENTUM, DECAY = 0.9, 0.0005
"""Of the step's update."""

SMALL = 1e-3
"""What the learning rate is multiplied by while time is taken.

Thousands of steps on one batch must not wear it out.
"""


@dataclass(frozen=True)
class Case:
    """A net, a batch size, and ``forward`` or ``step``.

    ``forward`` is a pass in phase TEST to the result; ``step`` is forward, backward and an
    update by SGD with momentum and weight decay.
    """

    net: str
    batch: int
    mode: str
    scale: int = 1

    @property
    def train(self) -> bool:
        return self.mode == "step"

    def __str__(self) -> str:
        return f"{self.net}:{self.batch}:{self.mode}"

    @property
    def file_name(self) -> str:
        return f"{self.net}_{self.batch}_{self.mode}"

    def prototxt(self) -> str:
        return KNOWN[self.net](self.batch, self.train, self.scale)

    @classmethod
    def parse(cls, text: str, scale: int = 1) -> "Case":
        net, batch, mode = text.split(":")
        modes = MODES if net in TRAINED else MODES[:1]
        if net not in KNOWN or not batch.isdigit() or mode not in modes:
            kinds = " or ".join(modes) if len(modes) > 1 else f"{modes[0]}, not {mode}"
            message = f"a case is NET:BATCH:MODE, with {', '.join(KNOWN)} and {kinds}"
            raise ValueError(message)
        return cls(net, int(batch), mode, scale)


DEFAULT = tuple(
    Case.parse(text)
    for text in (
        "lenet:64:forward", "cifar10_quick:100:forward", "caffenet:1:forward",
        "caffenet:10:forward", "caffenet:32:forward", "googlenet:1:forward",
        "googlenet:8:forward", "resnet50:1:forward", "resnet50:8:forward",
        "squeezenet:1:forward", "mobilenet:1:forward",
        "lenet:64:step", "cifar10_quick:100:step", "caffenet:1:step", "caffenet:10:step",
        "caffenet:32:step", "googlenet:1:step", "googlenet:8:step", "resnet50:1:step",
        "resnet50:8:step", "squeezenet:1:step", "mobilenet:1:step",
    )
)  # fmt: skip

QUICK = tuple(Case.parse(text) for text in ("lenet:64:forward", "lenet:64:step"))


@dataclass(frozen=True)
class Aim:
    """How many times faster than a peer, and how much of the peak; None where nothing is aimed."""

    eager: float
    best: float
    onnxruntime: float | None
    peak: float


AIMS = {
    "caffenet:10:forward": Aim(2.3, 1.7, 1.4, 0.86),
    "caffenet:32:step": Aim(2.0, 1.5, None, 0.86),
    "googlenet:8:forward": Aim(3.7, 1.45, 2.0, 0.86),
    "googlenet:8:step": Aim(2.3, 1.7, None, 0.76),
    "resnet50:8:forward": Aim(1.8, 1.1, 1.0, 0.90),
    "resnet50:8:step": Aim(1.6, 1.2, None, 0.75),
    "cifar10_quick:100:step": Aim(2.8, 2.1, None, 0.95),
    "lenet:64:forward": Aim(4.3, 1.6, 1.5, 0.60),
    "lenet:64:step": Aim(1.9, 1.3, None, 0.45),
}


def choose(
    patterns: list[str], *, quick: bool = False, aims: bool = False, among: Sequence[str] = ()
) -> list[Case]:
    """Return the default cases that match any pattern, and those spelled out.

    Without patterns: all; with ``aims`` those that we have aims for; with ``quick`` two. Where
    cases are given to choose ``among``, these are the default.
    """
    if aims:
        return [case for case in DEFAULT if str(case) in AIMS]
    default = [Case.parse(text) for text in among] or list(DEFAULT)
    if not patterns:
        return list(QUICK) if quick and not among else default
    chosen: list[Case] = []
    for pattern in patterns:
        found = [case for case in default if fnmatch(str(case), pattern)]
        chosen += found or [Case.parse(pattern)]
    return list(dict.fromkeys(chosen))
