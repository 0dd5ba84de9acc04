"""Nets with pre- and postprocessing: ``Model`` and its subclasses.

Source: OpenCV 4, ``modules/dnn/src/model.cpp``.
"""

import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from demitasse.compat.cvdnn import images
from demitasse.compat.cvdnn.boxes import WIDTH, array_or_empty
from demitasse.compat.cvdnn.constants import DNN_PMODE_CROP_CENTER, DNN_PMODE_NULL
from demitasse.compat.cvdnn.errors import also_named, error, failing_as
from demitasse.compat.cvdnn.images import ScalarLike, as_scalar
from demitasse.compat.cvdnn.net import Net, readNet
from demitasse.errors import ErrorCode

INFO = "im_info"
"""Input of a detector with proposals: height, width and scale of the image."""


class Model:
    """A net for images: ``Model(net)`` or ``Model(model, config)``.

    ``model`` is the path of the weights and ``config`` that of the prototxt; see ``readNet``.
    Setters return the model, so that they can be chained.
    """

    def __init__(self, model: Net | str | os.PathLike[str], config: str = "") -> None:
        self._net = model if isinstance(model, Net) else readNet(model, config)
        self._outputs = self._net.getUnconnectedOutLayersNames()
        self._params = images.Image2BlobParams(size=self._net._image_size())

    def setPreferableBackend(self, backendId: int) -> Self:
        """See ``Net.setPreferableBackend``."""
        self._net.setPreferableBackend(backendId)
        return self

    def setPreferableTarget(self, targetId: int) -> Self:
        """See ``Net.setPreferableTarget``."""
        self._net.setPreferableTarget(targetId)
        return self

    def enableWinograd(self, useWinograd: bool) -> Self:
        """See ``Net.enableWinograd``."""
        self._net.enableWinograd(useWinograd)
        return self

    def setInputParams(
        self, scale: float = 1.0, size: Sequence[int] | None = (0, 0), mean: ScalarLike | None = (),
        swapRB: bool = False, crop: bool = False,
    ) -> None:  # fmt: skip
        """Set all parameters at once; see ``blobFromImage``."""
        self.setInputScale(scale).setInputSize(images.as_size(size)).setInputMean(mean)
        self.setInputSwapRB(swapRB).setInputCrop(crop)

    @also_named(width="size")
    @failing_as("setInputSize")
    def setInputSize(self, size: int | Sequence[int], height: int | None = None) -> Self:
        """Set width and height of the blob, in pixels: ``(width, height)`` or two numbers."""
        self._params.size = images.as_size(size if height is None else [size, height])
        return self

    def setInputMean(self, mean: ScalarLike | None) -> Self:
        """Set the mean of each channel of the blob."""
        self._params.mean = as_scalar(mean, "mean")
        return self

    def setInputScale(self, scale: ScalarLike) -> Self:
        """Set the scale factors; a single number applies to all channels."""
        first, *others = numbers = as_scalar(scale, "scale")
        self._params.scalefactor = numbers if any(others) else (first,) * 4
        return self

    def setInputCrop(self, crop: bool) -> Self:
        """Set True to keep the aspect ratio and crop the longer side."""
        self._params.paddingmode = DNN_PMODE_CROP_CENTER if crop else DNN_PMODE_NULL
        return self

    def setInputSwapRB(self, swapRB: bool) -> Self:
        """Set True to swap the first and the third channel."""
        self._params.swapRB = swapRB
        return self

    def setOutputNames(self, outNames: Sequence[str]) -> Self:
        """Set the layers whose outputs are returned; defaults to layers without readers."""
        self._outputs = tuple(outNames)
        return self

    @failing_as("predict")
    def predict(self, frame: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the outputs for one image, (H, W) or (H, W, C).

        Raises:
            error: The size of the input is unknown, or see ``Net.forward``.
        """
        width, height = self._params.size
        if width <= 0 or height <= 0:
            message = f"the input size is {self._params.size}; call setInputSize((width, height))"
            raise error(message, code=ErrorCode.MISSING, field="size", got=self._params.size)
        self._net.setInput(images.blobFromImageWithParams(frame, self._params))
        if self._has_info():
            info = np.array([[height, width, 1.6]], np.float32)
            self._net.setInput(info, INFO)
        return self._net.forward(self._outputs)

    def _has_info(self) -> bool:
        return self._net.getLayer(0).outputNameToIndex(INFO) >= 0

    def _only_output(self, frame: np.ndarray) -> np.ndarray:
        outputs = self.predict(frame)
        if len(outputs) != 1:
            message = f"the net has outputs {', '.join(self._outputs)}; name one by setOutputNames"
            raise error(message, code=ErrorCode.COUNT_MISMATCH, got=list(self._outputs))
        return outputs[0]


class ClassificationModel(Model):
    """A net whose output is a score per class."""

    _softmax = False

    def setEnableSoftmaxPostProcessing(self, enable: bool) -> Self:
        """Enable or disable softmax of the scores; disabled by default."""
        self._softmax = enable
        return self

    def getEnableSoftmaxPostProcessing(self) -> bool:
        """Return True if softmax of the scores is enabled."""
        return self._softmax

    @failing_as("classify")
    def classify(self, frame: np.ndarray) -> tuple[int, float]:
        """Return the best class of an image and its score, for a net with one output."""
        scores = self._only_output(frame).ravel()
        if self._softmax:
            powers = np.exp(scores - scores.max())
            scores = (powers / powers.sum(dtype=np.float64)).astype(np.float32)
        best = int(scores.argmax())
        return best, float(scores[best])


class SegmentationModel(Model):
    """A net whose output is a score map per class."""

    @failing_as("segment")
    def segment(self, frame: np.ndarray) -> np.ndarray:
        """Return the best class of each pixel, uint8; the lowest of equal classes.

        Shapes: output of the net (N, C, H, W) -> (H, W), of the first item.

        Raises:
            error: The net has several outputs or an output of another shape, or see ``predict``.
        """
        scores = self._only_output(frame)
        if scores.ndim != 4:
            message = f"the output of the net must be (N, C, H, W), it is {scores.shape}"
            raise error(message, code=ErrorCode.SHAPE_MISMATCH, got=scores.shape)
        return np.asarray(scores[0].argmax(axis=0), np.uint8)


class DetectionModel(Model):
    """A net that ends in a DetectionOutput layer."""

    _across_classes = False

    def setNmsAcrossClasses(self, value: bool) -> Self:
        """Store the flag, which has no effect, as the layer has suppressed overlapping boxes."""
        self._across_classes = value
        return self

    def getNmsAcrossClasses(self) -> bool:
        """Return the flag; False by default."""
        return self._across_classes

    @failing_as("detect")
    def detect(
        self, frame: np.ndarray, confThreshold: float = 0.5, nmsThreshold: float = 0.0
    ) -> tuple[np.ndarray | tuple[()], np.ndarray | tuple[()], np.ndarray | tuple[()]]:
        """Return detections: classes, scores and boxes of x, y, width and height.

        Scores are at least ``confThreshold``. ``nmsThreshold`` is ignored, as the layer has
        suppressed overlapping boxes.

        Shapes: classes (K,) int32, scores (K,) float32, boxes (K, 4) int32, in pixels of the
        image; each an empty tuple without detections.

        Raises:
            error: The last layer or an output is of another kind, or see ``predict``.
        """
        del nmsThreshold
        last = self._net.getLayer(self._net.getLayerNames()[-1])
        if last.type != "DetectionOutput":
            message = (
                f"the last layer, {last.name!r}, must be of type DetectionOutput, it is of "
                f"{last.type}; call predict, and NMSBoxes for other boxes"
            )
            raise error(message, code=ErrorCode.UNSUPPORTED, layer=last.name, got=last.type)
        outputs = self.predict(frame)
        for output in outputs:
            if output.shape[-1] != WIDTH:
                message = (
                    f"an output is {output.shape}, detections have {WIDTH} numbers each; "
                    f"call setOutputNames([{last.name!r}])"
                )
                raise error(message, code=ErrorCode.SHAPE_MISMATCH, got=output.shape)
        rows = np.concatenate([output.reshape(-1, WIDTH) for output in outputs])
        rows = rows[rows[:, 2] >= np.float32(confThreshold)]
        size = self._params.size if self._has_info() else (frame.shape[1], frame.shape[0])
        return (
            array_or_empty(rows[:, 1].astype(np.int32)),
            array_or_empty(rows[:, 2].copy()),
            array_or_empty(_boxes(rows[:, 3:], *size)),
        )


def _boxes(corners: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return boxes of x, y, width and height, clipped to an image of this size.

    Corners at most one pixel apart are treated as fractions of the image.

    Shapes: (K, 4): xmin, ymin, xmax, ymax -> (K, 4), int32.
    """
    size = np.array([width, height])
    with np.errstate(invalid="ignore", over="ignore"):  # values beyond int32 become its minimum
        corner = corners.astype(np.int32)
        small = (corner[:, 2:] - corner[:, :2] + 1 <= 2).any(axis=1)
        scaled = corners[small] * np.tile(size, 2).astype(np.float32)
        corner[small] = scaled.astype(np.int32)
    low = np.clip(corner[:, :2], 0, size - 1)
    extent = np.maximum(np.minimum(corner[:, 2:] - corner[:, :2] + 1, size - low), 1)
    return np.concatenate([low, extent], axis=1).astype(np.int32)
