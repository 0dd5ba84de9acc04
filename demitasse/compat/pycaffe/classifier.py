"""``caffe.Classifier``: a net that is given images and returns class probabilities.

Source: Caffe, ``python/caffe/classifier.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.compat.pycaffe import io
from demitasse.compat.pycaffe.net import Net
from demitasse.io.proto import caffe_pb2

__all__ = ["Classifier", "transformer_for"]


class Classifier(Net):
    """A net in phase TEST that scales images, crops them and averages over several views.

    Args:
        model_file: The net's prototxt.
        pretrained_file: Its weights.
        image_dims: Height and width that images are brought to before they are cropped, in
            pixels; by default the size of the net's input, so nothing is cropped away.
        mean: Subtracted from images, see ``io.Transformer.set_mean``.
        input_scale: The factor after that.
        raw_scale: The factor before: 255 for nets trained on [0, 255].
        channel_swap: The order of channels: (2, 1, 0) for nets trained on blue first.

    Attributes:
        transformer: Makes the net's input of an image.
        crop_dims: Height and width of the net's input, in pixels.
        image_dims: As given.

    Raises:
        PrototxtError: The net's file cannot be read.
        WeightsError: The weights cannot be read, or do not fit.
    """

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        image_dims: io.Sizes | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, caffe_pb2.TEST, weights=pretrained_file)
        self.transformer = transformer_for(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].data.shape[2:])
        self.image_dims = self.crop_dims if image_dims is None else image_dims

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """Return the probabilities of classes.

        Args:
            inputs: Images as ``io.load_image`` gives them. Shape of each: (H, W, C).
            oversample: Average over corners, centre and their mirror images; otherwise only the
                centre is looked at.

        Returns:
            The net's first output. Shape: (N, classes) when oversampled, else (N, ...).

        Raises:
            ValueError: The net's input is larger than ``image_dims``.
        """
        resized = np.stack([io.resize_image(image, self.image_dims) for image in inputs])
        views = io.oversample(resized, self.crop_dims) if oversample else self._centers(resized)
        name = self.inputs[0]
        batch = np.stack([self.transformer.preprocess(name, view) for view in views])
        found = self.forward_all(**{name: batch})[self.outputs[0]]
        return found.reshape(len(inputs), 10, -1).mean(1) if oversample else found

    def _centers(self, images: np.ndarray) -> np.ndarray:
        """Cut the net's input size out of the middle of images. Shape: (N, H, W, C)."""
        size = np.array(images.shape[1:3])
        if np.any(size < self.crop_dims):
            message = f"the net's input is {self.crop_dims} pixels, larger than image_dims, {size}"
            raise ValueError(message)
        (top, left), (height, width) = (size - self.crop_dims) // 2, self.crop_dims
        return images[:, top : top + height, left : left + width]


def transformer_for(
    net: Net,
    mean: np.ndarray | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> io.Transformer:
    """Return what turns images (H, W, C) into the first input of a net."""
    name = net.inputs[0]
    transformer = io.Transformer({name: net.blobs[name].data.shape})
    transformer.set_transpose(name, (2, 0, 1))
    if mean is not None:
        transformer.set_mean(name, mean)
    if input_scale is not None:
        transformer.set_input_scale(name, input_scale)
    if raw_scale is not None:
        transformer.set_raw_scale(name, raw_scale)
    if channel_swap is not None:
        transformer.set_channel_swap(name, channel_swap)
    return transformer
