"""Nets with what is done to images before and to outputs after: ``Model`` and its kinds.

Source: OpenCV 4, ``modules/dnn/src/model.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from demitasse.compat.cvdnn.boxes import found_or_empty
from demitasse.compat.cvdnn.constants import DNN_PMODE_CROP_CENTER, DNN_PMODE_NULL
from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.compat.cvdnn.images import Image2BlobParams, blobFromImageWithParams
from demitasse.compat.cvdnn.net import Net
from demitasse.compat.cvdnn.reading import readNet
from demitasse.compat.cvdnn.scalar import Scalar, ScalarLike, as_scalar, as_size

__all__ = ["ClassificationModel", "DetectionModel", "Model", "SegmentationModel"]

INFO = "im_info"
"""The input of a detector with proposals: height, width and scale of the image."""


class Model:
    """A net that is given images: ``Model(net)`` or ``Model(model, config)``.

    The methods that set something return the model, so that they can be chained.

    Args:
        model: A net, or the path of its weights.
        config: Path of its text file.

    Raises:
        error: The files cannot be read.
    """

    def __init__(self, model: Net | str | os.PathLike[str], config: str = "") -> None:
        self._net = model if isinstance(model, Net) else readNet(model, config)
        self._outputs = self._net.getUnconnectedOutLayersNames()
        self._params = Image2BlobParams(size=self._net._image_size())

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
        self,
        scale: float = 1.0,
        size: Sequence[int] = (0, 0),
        mean: ScalarLike = (),
        swapRB: bool = False,
        crop: bool = False,
    ) -> None:
        """Set all of the others at once; see ``blobFromImage``."""
        self.setInputScale(scale).setInputSize(size).setInputMean(mean)
        self.setInputSwapRB(swapRB).setInputCrop(crop)

    @failing_as("setInputSize")
    def setInputSize(self, *size: int | Sequence[int]) -> Self:
        """Set width and height of the blob, in pixels: ``(width, height)`` or two numbers.

        Raises:
            error: They are not two numbers.
        """
        self._params.size = as_size(size)
        return self

    def setInputMean(self, mean: ScalarLike) -> Self:
        """Set what is subtracted from each channel of the blob."""
        self._params.mean = as_scalar(mean, "mean")
        return self

    def setInputScale(self, scale: ScalarLike) -> Self:
        """Set what values are multiplied by; a single number holds for all channels."""
        self._params.scalefactor = _for_all(as_scalar(scale, "scale"))
        return self

    def setInputCrop(self, crop: bool) -> Self:
        """Set whether images keep their proportions, and what is too long is cut off."""
        self._params.paddingmode = DNN_PMODE_CROP_CENTER if crop else DNN_PMODE_NULL
        return self

    def setInputSwapRB(self, swapRB: bool) -> Self:
        """Set whether the first and the third channel change places."""
        self._params.swapRB = swapRB
        return self

    def setOutputNames(self, outNames: Sequence[str]) -> Self:
        """Set the layers whose outputs are returned; at first those that no other reads."""
        self._outputs = tuple(outNames)
        return self

    @failing_as("predict")
    def predict(self, frame: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the outputs for one image.

        Shapes: frame (H, W) or (H, W, C).

        Raises:
            error: The size of the input is not known, or see ``Net.forward``.
        """
        width, height = self._params.size
        if width <= 0 or height <= 0:
            message = f"the input size is {self._params.size}; call setInputSize((width, height))"
            raise error(message)
        self._net.setInput(blobFromImageWithParams(frame, self._params))
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
            raise error(message)
        return outputs[0]


class ClassificationModel(Model):
    """A net that gives a score for each class."""

    _softmax = False

    def setEnableSoftmaxPostProcessing(self, enable: bool) -> Self:
        """Set whether scores are made probabilities; off at first."""
        self._softmax = enable
        return self

    def getEnableSoftmaxPostProcessing(self) -> bool:
        """Return whether scores are made probabilities."""
        return self._softmax

    @failing_as("classify")
    def classify(self, frame: np.ndarray) -> tuple[int, float]:
        """Return the best class of an image and its score.

        Raises:
            error: The net has several outputs, or see ``predict``.
        """
        scores = self._only_output(frame).ravel()
        if self._softmax:
            powers = np.exp(scores - scores.max())
            scores = (powers / powers.sum(dtype=np.float64)).astype(np.float32)
        best = int(scores.argmax())
        return best, float(scores[best])


class SegmentationModel(Model):
    """A net that gives a map of scores for each class."""

    @failing_as("segment")
    def segment(self, frame: np.ndarray) -> np.ndarray:
        """Return the best class of each pixel, uint8; the first one of equals.

        Shapes: output of the net (N, C, H, W) -> (H, W), of the first item.

        Raises:
            error: The net has several outputs or another one, or see ``predict``.
        """
        scores = self._only_output(frame)
        if scores.ndim != 4:
            message = f"the output of the net must be (N, C, H, W), it is {scores.shape}"
            raise error(message)
        return np.asarray(scores[0].argmax(axis=0), np.uint8)


class DetectionModel(Model):
    """A net that ends in a layer DetectionOutput."""

    @failing_as("detect")
    def detect(
        self, frame: np.ndarray, confThreshold: float = 0.5, nmsThreshold: float = 0.0
    ) -> tuple[np.ndarray | tuple[()], np.ndarray | tuple[()], np.ndarray | tuple[()]]:
        """Return what is in an image: classes, scores and boxes of x, y, width and height.

        Args:
            frame: The image.
            confThreshold: The least score.
            nmsThreshold: Not used: the layer has suppressed overlapping boxes.

        Shapes: classes (K,) int32, scores (K,) float32, boxes (K, 4) int32, in pixels of the
        image; each an empty tuple where nothing was found.

        Raises:
            error: The last layer is of another type, or see ``predict``.
        """
        del nmsThreshold
        last = self._net.getLayer(self._net.getLayerNames()[-1])
        if last.type != "DetectionOutput":
            message = (
                f"the last layer, {last.name!r}, must be of type DetectionOutput, it is of "
                f"{last.type}; call predict, and NMSBoxes for boxes of your own"
            )
            raise error(message)
        outputs = self.predict(frame)
        rows = np.concatenate([output.reshape(-1, 7) for output in outputs])
        rows = rows[rows[:, 2] >= np.float32(confThreshold)]
        size = self._params.size if self._has_info() else (frame.shape[1], frame.shape[0])
        return (
            found_or_empty(rows[:, 1].astype(np.int32)),
            found_or_empty(rows[:, 2].copy()),
            found_or_empty(_boxes(rows[:, 3:], *size)),
        )


def _boxes(corners: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return boxes of x, y, width and height inside of an image of that size.

    Corners that lie no more than a pixel apart are taken for shares of the image.

    Shapes: (K, 4): xmin, ymin, xmax, ymax -> (K, 4), int32.
    """
    size = np.array([width, height])
    with np.errstate(invalid="ignore", over="ignore"):  # numbers beyond int32 become its least
        corner = corners.astype(np.int32)
        small = (corner[:, 2:] - corner[:, :2] + 1 <= 2).any(axis=1)
        scaled = corners[small] * np.tile(size, 2).astype(np.float32)
        corner[small] = scaled.astype(np.int32)
    low = np.clip(corner[:, :2], 0, size - 1)
    extent = np.maximum(np.minimum(corner[:, 2:] - corner[:, :2] + 1, size - low), 1)
    return np.concatenate([low, extent], axis=1).astype(np.int32)


def _for_all(scale: Scalar) -> Scalar:
    """Return a scale whose single number holds for all channels."""
    first, *others = scale
    return scale if any(others) else (first, first, first, first)
