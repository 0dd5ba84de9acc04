"""``caffe.Classifier``: class probabilities of images.

Source: Caffe, ``python/caffe/classifier.py``.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.compat.pycaffe import io
from demitasse.compat.pycaffe.net import Net
from demitasse.io.proto import caffe_pb2


class Classifier(Net):
    """A net in phase TEST that preprocesses images and averages over several crops.

    Args:
        image_dims: Height and width of images before the crop, in pixels; defaults to the size of
            the net's input.
        mean: Subtracted from images, see ``io.Transformer.set_mean``.
        input_scale: Factor after the subtraction of the mean.
        raw_scale: Factor before: 255 for nets trained on [0, 255].
        channel_swap: Order of channels: (2, 1, 0) for nets trained on BGR.

    Attributes:
        crop_dims: Height and width of the net's input, in pixels.

    Raises:
        PrototxtError: The net's file cannot be read.
        WeightsError: The weights cannot be read, or do not fit.
    """

    def __init__(
        self, model_file: str, pretrained_file: str, image_dims: io.Sizes | None = None,
        mean: np.ndarray | None = None, input_scale: float | None = None,
        raw_scale: float | None = None, channel_swap: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model_file, caffe_pb2.TEST, weights=pretrained_file)
        self.transformer = transformer_for(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].data.shape[2:])
        self.image_dims = self.crop_dims if image_dims is None else image_dims

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """Return the net's first output for images as from ``io.load_image``: class probabilities.

        ``oversample`` averages over corners, center and their mirror images; False uses only the
        center. Shapes: N of (H, W, C) -> (N, classes) when oversampled, else (N, ...).

        Raises:
            ValueError: The net's input is larger than ``image_dims``.
        """
        resized = np.stack([io.resize_image(image, self.image_dims) for image in inputs])
        if oversample:
            views = io.oversample(resized, self.crop_dims)
        else:
            size = np.array(resized.shape[1:3])
            if np.any(size < self.crop_dims):
                message = (
                    f"the net's input is {self.crop_dims} pixels, larger than image_dims, {size}"
                )
                raise ValueError(message)
            (top, left), (height, width) = (size - self.crop_dims) // 2, self.crop_dims
            views = resized[:, top : top + height, left : left + width]
        name = self.inputs[0]
        batch = np.stack([self.transformer.preprocess(name, view) for view in views])
        scores = self.forward_all(**{name: batch})[self.outputs[0]]
        return scores.reshape(len(inputs), 10, -1).mean(1) if oversample else scores


def transformer_for(
    net: Net, mean: np.ndarray | None, input_scale: float | None, raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> io.Transformer:  # fmt: skip
    """Return the transformer of images (H, W, C) to the first input of a net."""
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
