"""What a model card says: which net, how images are prepared for it, what its outputs mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CHANNELS", "MOST_PIXELS", "RESIZES", "TASKS", "Anchors", "Card", "Detect", "Preprocess"]

TASKS = ("classify", "detect", "segment", "features")
RESIZES = ("warp", "short side", "none")
CHANNELS = {"bgr": 3, "rgb": 3, "gray": 1}
"""Order of channels -> how many there are."""


MOST_PIXELS = 16_384
"""The longest side of an image when it is prepared."""


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes an input: resized, cropped in the middle, minus mean, times scale.

    Attributes:
        channels: Order of the net's channels, one of ``CHANNELS``.
        size: Height and width that ``warp`` resizes to, or the length of the short side, in pixels;
            empty for the size of the net's input.
        resize: One of ``RESIZES``: to ``size`` whatever the image's shape, by the same factor both
            ways, or not at all.
        crop: Height and width of what is cut out of the middle, in pixels; empty for all of it.
        mean: One value for all channels or one for each, of pixels from 0 to 255 and in the order
            of ``channels``; or a file with a mean image; empty for nothing.
        scale: One factor for all channels, or one for each.
    """

    channels: str
    size: tuple[int, ...] = ()
    resize: str = "warp"
    crop: tuple[int, ...] = ()
    mean: tuple[float, ...] | Path = ()
    scale: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Anchors:
    """The boxes that predictions are relative to, where the net itself does not make them.

    Attributes:
        sizes: For each map of the net, the sides of its square boxes, in pixels of the input.
        steps: For each map, the distance of its cells, in pixels of the input.
        variance: What predictions of centre and size, four numbers, are multiplied by.
    """

    sizes: tuple[tuple[float, ...], ...]
    steps: tuple[float, ...]
    variance: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2)


@dataclass(frozen=True)
class Detect:
    """What a detector's outputs mean.

    Attributes:
        threshold: Boxes with lower scores are left out.
        boxes: The output with the predicted boxes, where there is no layer DetectionOutput.
        scores: The output with their scores.
        anchors: What the predictions are relative to.
        overlap: A box goes when it overlaps a better one of its class by more than this.
        background: The class that is no object; -1 for none.
    """

    threshold: float = 0.5
    boxes: str = ""
    scores: str = ""
    anchors: Anchors | None = None
    overlap: float = 0.45
    background: int = 0


@dataclass(frozen=True)
class Card:
    """A model card.

    Attributes:
        task: What the net does, one of ``TASKS``.
        preprocess: How images are prepared.
        net: The prototxt; None in a published card, which goes with anybody's copy.
        weights: The files of weights.
        name: What the model is called.
        input: The net's input; empty where it has only one.
        outputs: The blobs to read; empty for the net's outputs.
        labels: Names of the classes; empty where they are not known.
        batch: The most images that the net takes at once; 0 for any number.
        softmax: Whether scores are brought to probabilities, where no layer Softmax does.
        detect: What the outputs of a detector mean.
        source: Where the model comes from.
        licence: Under what terms.
    """

    task: str
    preprocess: Preprocess
    net: Path | None = None
    weights: tuple[Path, ...] = ()
    name: str = ""
    input: str = ""
    outputs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    batch: int = 0
    softmax: bool = False
    detect: Detect = field(default_factory=Detect)
    source: str = ""
    licence: str = ""
