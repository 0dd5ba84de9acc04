"""Contents of a model card: the net, its preprocessing, the meaning of its outputs."""

from dataclasses import dataclass, field
from pathlib import Path

TASKS = ("classify", "detect", "segment", "image", "features")
RESIZES = ("warp", "short side", "factor", "none")
CHANNELS = {"bgr": 3, "rgb": 3, "gray": 1, "y": 1, "l": 1}
"""Number of channels by their order; y is the luma of YCbCr, l the lightness of Lab."""

OUTPUT_CHANNELS = {"bgr": 3, "rgb": 3, "gray": 1, "y": 1, "ab": 2}
"""Number of channels of an output image by their order."""

COMPLETED = {"y": "y", "ab": "l"}
"""Channels of an output that lacks others, which the image has -> channels of the input."""

MAX_SIDE = 16_384
"""Longest side of a resized image, in pixels."""

MAX_AREA = 1 << 25
"""Largest image that keeps its proportions when it is resized, in pixels: 33.5 million."""


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of images: resize, center crop, subtract the mean, multiply by the scale.

    Attributes:
        channels: Order of the net's channels, one of ``CHANNELS``.
        size: Height and width for ``warp``, or the length of the short side, in pixels, or the
            factor; empty for the size of the net's input.
        resize: One of ``RESIZES``: resize to ``size``, resize the short side to ``size`` and the
            other by the same factor, enlarge both sides by a factor, or keep the image's size.
        crop: Height and width of the center crop, in pixels; empty for no crop.
        mean: One value for all channels or one per channel, in units of pixels from 0 to 255 and
            in the order of ``channels``; or a file with a mean image; empty for no mean.
        scale: One factor for all channels, or one per channel.
    """

    channels: str
    size: tuple[int, ...] = ()
    resize: str = "warp"
    crop: tuple[int, ...] = ()
    mean: tuple[float, ...] | Path = ()
    scale: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Anchors:
    """Anchor boxes, for nets without a PriorBox layer.

    Attributes:
        sizes: Sides of the square boxes of each feature map, in pixels of the input.
        steps: Distance of the cells of each feature map, in pixels of the input.
        variance: Four factors of the predicted centers and sizes.
    """

    sizes: tuple[tuple[float, ...], ...]
    steps: tuple[float, ...]
    variance: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2)


@dataclass(frozen=True)
class Detect:
    """Meaning of a detector's outputs.

    Attributes:
        threshold: Lowest score of a reported box.
        boxes: Output with the predicted boxes, for nets without a DetectionOutput layer.
        scores: Output with the scores of the boxes.
        anchors: Anchor boxes of the predictions.
        overlap: Non-maximum suppression removes a box whose IoU with a better box of its class
            exceeds this value.
        background: Class of the background; -1 for none.
    """

    threshold: float = 0.5
    boxes: str = ""
    scores: str = ""
    anchors: Anchors | None = None
    overlap: float = 0.45
    background: int = 0


@dataclass(frozen=True)
class ImageOutput:
    """Meaning of an output that is an image: (pixels - mean) * scale, as in ``Preprocess``.

    Attributes:
        channels: Order of the output's channels, one of ``OUTPUT_CHANNELS``.
        mean: One value for all channels or one per channel; empty for none.
        scale: One factor for all channels, or one per channel.
    """

    channels: str = "bgr"
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Card:
    """A model card.

    Attributes:
        task: Task of the net, one of ``TASKS``.
        preprocess: Preprocessing of images.
        net: The prototxt; None in a published card.
        weights: The files of weights.
        name: Name of the model.
        input: Input for images; empty for the only one.
        outputs: Blobs to return; empty for the net's outputs.
        labels: Names of the classes; empty if unknown.
        batch: Largest batch of the net; 0 for no limit.
        softmax: Apply softmax to the scores of a net without a Softmax layer.
        detect: Meaning of a detector's outputs.
        image: Meaning of an output that is an image.
        source: Origin of the model.
        licence: Licence of the model.
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
    image: ImageOutput = field(default_factory=ImageOutput)
    source: str = ""
    licence: str = ""

    @property
    def needs_colors(self) -> bool:
        """True if predictions take colors from the image, because the net's input lacks them."""
        return self.task == "image" and self.image.channels in COMPLETED
