"""What happens to an image before the first layer, as part of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.errors import ConfigError, ErrorCode
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.walk import Value

__all__ = ["Preprocess", "preprocess"]


@dataclass(frozen=True)
class Preprocess:
    """What is done to the images that the caller gives: RGB to BGR, less the mean, times the scale.

    Attributes:
        mean: What is subtracted: a number, one for each channel in the net's order, or an array
            (C, H, W).
        scale: What the difference is multiplied by.
        bgr: Whether images come as RGB, and the net wants BGR.
        uint8: Whether images come as whole numbers from 0 to 255, and not as floats.
        input: Name of the input; empty for the first of four axes.
    """

    mean: float | Sequence[float] | np.ndarray | None = None
    scale: float = 1.0
    bgr: bool = False
    uint8: bool = False
    input: str = ""

    def applied(self, images: np.ndarray) -> np.ndarray:
        """Return images as the net wants them. Shape: (N, C, H, W)."""
        values = images[:, ::-1] if self.bgr else images
        found = values.astype(np.float32)
        if self.mean is not None:
            found = found - self.mean_for(images.shape)
        return found * np.float32(self.scale)

    def mean_for(self, shape: Sequence[int]) -> np.ndarray:
        """Return the mean, so that it broadcasts; the middle of one that is larger.

        Args:
            shape: That of the images, (N, C, H, W).

        Raises:
            ConfigError: It does not fit.
        """
        mean = np.asarray(self.mean, np.float32)
        if mean.ndim == 4 and mean.shape[0] == 1:
            mean = mean[0]
        if mean.ndim == 3:
            above, left = ((a - b) // 2 for a, b in zip(mean.shape[1:], shape[2:], strict=True))
            if above >= 0 and left >= 0:
                mean = mean[:, above : above + shape[2], left : left + shape[3]]
        elif mean.ndim == 1:
            mean = mean.reshape(-1, 1, 1)
        fits = mean.ndim in {0, 3} and all(
            have in {1, want} for have, want in zip(mean.shape, shape[1:], strict=False)
        )
        if not fits:
            message = (
                f"a mean of shape {mean.shape} does not fit images {tuple(shape)}; give a "
                "number, one for each channel, or (C, H, W) at least as large"
            )
            raise ConfigError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                field="mean",
                got=mean.shape,
                expected=tuple(shape),
            )
        return mean

    def chosen(self, inputs: Sequence[Value]) -> Value:
        """Return the input that is meant.

        Raises:
            ConfigError: There is none of this name, or none of four axes.
        """
        for one in inputs:
            if one.name == self.input or (not self.input and len(one.shape) == 4):
                return one
        message = f"no input {self.input!r} of images: there are {[one.name for one in inputs]}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="input", got=self.input)


def preprocess(how: Preprocess, image: Value, graph: Graph) -> str:
    """Add what is done to an input; return the name of the result."""
    with graph.layer("preprocess"):
        x = graph.floats(image.name) if how.uint8 else image.name
        if how.bgr:
            turned = list(range(image.shape[1]))[::-1]
            x = graph.add("Gather", x, graph.ints(turned), axis=1)
        if how.mean is not None:
            x = graph.add("Sub", x, graph.constant(how.mean_for(image.shape), "mean"))
        if how.scale != 1:
            x = graph.add("Mul", x, graph.number(how.scale))
    return x
