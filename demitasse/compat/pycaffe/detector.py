"""``caffe.Detector``: classification of windows of images, as in R-CNN.

Source: Caffe, ``python/caffe/detector.py``.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypedDict

import numpy as np

from demitasse.compat.pycaffe import io
from demitasse.compat.pycaffe.classifier import transformer_for
from demitasse.compat.pycaffe.net import Net
from demitasse.io.proto import caffe_pb2

Window = Sequence[float] | np.ndarray
"""First row and column, last row and column, in pixels: ymin, xmin, ymax, xmax."""


class Detection(TypedDict):
    """Prediction for one window."""

    window: Window
    prediction: np.ndarray
    filename: str


class Detector(Net):
    """A net in phase TEST that classifies windows of images, warped to its input.

    Other arguments and errors are those of ``Classifier``.

    Args:
        context_pad: Width of the border of the net's input that shows the surroundings of a
            window, in pixels of the input; None for no border.

    Attributes:
        crop_dims: Shape of the net's input as an image: (H, W, C).
        crop_mean: Value of pixels beyond an image's edges, for a border.
    """

    def __init__(
        self, model_file: str, pretrained_file: str, mean: np.ndarray | None = None,
        input_scale: float | None = None, raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None, context_pad: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model_file, caffe_pb2.TEST, weights=pretrained_file)
        self.transformer = transformer_for(self, mean, input_scale, raw_scale, channel_swap)
        self.configure_crop(context_pad)

    def detect_windows(
        self, images_windows: Iterable[tuple[str, Iterable[Window]]]
    ) -> list[Detection]:
        """Return the net's first output for each window of image files."""
        places: list[tuple[str, Window]] = []
        inputs = []
        name = self.inputs[0]
        for filename, windows in images_windows:
            image = io.load_image(filename)
            for window in windows:
                inputs.append(self.transformer.preprocess(name, self.crop(image, window)))
                places.append((filename, window))
        if not inputs:
            return []
        predictions = self.forward_all(**{name: np.stack(inputs)})[self.outputs[0]]
        return [
            {"window": window, "prediction": prediction, "filename": filename}
            for (filename, window), prediction in zip(places, predictions, strict=True)
        ]

    def detect_selective_search(self, image_fnames: Iterable[str]) -> list[Detection]:
        """Run the net on windows of image files that selective search proposes.

        Raises:
            ImportError: The package of selective search is missing.
        """
        try:
            selective_search = import_module("selective_search_ijcv_with_python")
        except ImportError as error:
            message = (
                "selective search needs the module selective_search_ijcv_with_python and MATLAB; "
                "put its folder on PYTHONPATH, or propose windows yourself and call detect_windows"
            )
            raise ImportError(message) from error
        # the search runs in MATLAB, which has its own working directory
        files = [str(Path(name).absolute()) for name in image_fnames]
        windows = selective_search.get_windows(files, cmd="selective_search_rcnn")
        return self.detect_windows(zip(files, windows, strict=True))

    def crop(self, im: np.ndarray, window: Window) -> np.ndarray:
        """Return a window of an image (H, W, C) in its own size; with context, in the net's size.

        A window outside of the image is a ValueError.
        """
        top, left, bottom, right = (int(edge) for edge in window)
        if not self.context_pad:
            return im[top:bottom, left:right]
        return self._crop_with_context(im, np.array([top, left, bottom, right]))

    def _crop_with_context(self, im: np.ndarray, window: np.ndarray) -> np.ndarray:
        """Crop a window with its border; fill pixels beyond the image's edges with the mean."""
        size = self.blobs[self.inputs[0]].width
        half = (window[2:] - window[:2] + 1) / 2  # height and width
        center, reach = window[:2] + half, half * size / (size - 2 * self.context_pad)
        begin, end = np.round(center - reach), np.round(center + reach)
        scale = size / (end - begin + 1)  # pixels of the net's input to one of the image
        pad = _rounded(np.maximum(0, -begin) * scale)

        limits = np.array(im.shape[:2])
        begin, end = begin.clip(0, limits).astype(int), end.clip(0, limits).astype(int)
        if np.any(begin >= limits) or np.any(end <= 0) or np.any(end < begin):
            message = f"window {window.tolist()} lies outside of an image of {im.shape[:2]} pixels"
            raise ValueError(message)
        shown = np.minimum(_rounded((end - begin + 1) * scale), size - pad)

        inside = io.resize_image(im[begin[0] : end[0], begin[1] : end[1]], shown)
        crop = np.broadcast_to(self.crop_mean, self.crop_dims).astype(np.float32)
        crop[pad[0] : pad[0] + shown[0], pad[1] : pad[1] + shown[1]] = inside
        return crop

    def configure_crop(self, context_pad: int | None) -> None:
        """Set the width of the context, and compute the mean image for pixels beyond the edges."""
        name = self.inputs[0]
        to_image = np.argsort(self.transformer.transpose[name])
        shape = self.blobs[name].data.shape
        self.crop_dims = np.array(shape[1:])[to_image]
        self.context_pad = context_pad or 0
        mean = self.transformer.mean.get(name)
        if mean is None:
            self.crop_mean: np.ndarray = np.zeros(self.crop_dims, np.float32)
            return
        swap = self.transformer.channel_swap.get(name)
        beyond = mean if swap is None else mean[np.argsort(swap)]
        beyond = beyond.transpose(to_image)
        self.crop_mean = beyond / self.transformer.raw_scale.get(name, 1.0)


def _rounded(pixels: np.ndarray) -> np.ndarray:
    """Round to whole pixels, halves up."""
    return np.floor(pixels + 0.5).astype(int)
