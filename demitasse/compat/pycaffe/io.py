"""Convert images and arrays to inputs of nets and records of databases, and back.

Images are like scikit-image's: (H, W, C), float32, RGB, in [0, 1]. ``Transformer`` applies a net's
preprocessing.

Source: Caffe, ``python/caffe/io.py``.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from demitasse.compat.pycaffe.interpolate import resize_points, resize_squares
from demitasse.core.paths import read_bytes
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases import datum as records
from demitasse.io.data.images.codecs import opened
from demitasse.io.proto import (
    BlobProto,
    BlobProtoVector,
    Datum,
    caffe_pb2,  # noqa: F401 - scripts use caffe.io.caffe_pb2
    floats,
    set_floats,
    stored_shape,
)
from demitasse.io.proto.read_binary import parse_message

Sizes = Sequence[int] | np.ndarray
"""Height and width, in pixels."""

BRIGHTNESS = (0.2125, 0.7154, 0.0721)
"""Weights of red, green and blue in gray, for CRT phosphors."""


def __getattr__(name: str) -> ModuleType:
    """Import scikit-image as ``caffe.io.skimage``, for scripts."""
    if name != "skimage":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        for part in ("io", "transform"):
            import_module(f"skimage.{part}")
    except ImportError as error:
        message = (
            f"{__name__}.skimage is scikit-image, which cannot be imported ({error}); "
            "pip install scikit-image"
        )
        raise AttributeError(message) from error
    return import_module("skimage")


# -- messages -------------------------------------------------------------------------------------


def blobproto_to_array(blob: BlobProto, return_diff: bool = False) -> np.ndarray:
    """Return the data of a blob message, or its gradient, as float64.

    Raises:
        ValueError: The number of values does not fit the shape.
    """
    values, shape = floats(blob, diff=return_diff), stored_shape(blob)
    if values.size != np.prod(shape, dtype=np.int64):
        message = f"the blob message has {values.size} values, but its shape is {shape}"
        raise ValueError(message)
    return values.astype(np.float64).reshape(shape)


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None) -> BlobProto:
    """Return a blob message of an array and, optionally, a gradient; both in float32."""
    values = np.asarray(arr)
    blob = BlobProto()
    blob.shape.dim.extend(values.shape)
    set_floats(blob, values.astype(np.float32))
    if diff is not None:
        set_floats(blob, np.asarray(diff).astype(np.float32), diff=True)
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[np.ndarray]) -> bytes:
    """Return the bytes of a message of several blobs."""
    vector = BlobProtoVector(blobs=[array_to_blobproto(arr) for arr in arraylist])
    return vector.SerializeToString()


def blobprotovector_str_to_arraylist(str: bytes) -> list[np.ndarray]:
    """Return the arrays in the bytes of a message of several blobs."""
    return [blobproto_to_array(blob) for blob in parse_message(str, BlobProtoVector).blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None) -> Datum:
    """Return the record of an image (C, H, W): uint8 is stored as bytes, other types as float32.

    Raises:
        ValueError: The array does not have three axes.
    """
    if arr.ndim != 3:
        message = f"a datum is (channels, height, width), the array given is {arr.shape}"
        raise ValueError(message)
    datum = records.array_to_datum(arr)
    if label is not None:
        datum.label = int(label)
    return datum


def datum_to_array(datum: Datum) -> np.ndarray:
    """Return the pixels of a record: uint8, or float64 for stored floats. Shape: (C, H, W).

    Raises:
        ValueError: The record is a compressed image, or its size does not fit its values.
    """
    shape = (datum.channels, datum.height, datum.width)
    if datum.encoded:
        message = (
            "the datum holds a compressed image: "
            "demitasse.io.data.datum_to_array(datum) decodes it: (C, H, W), blue first"
        )
        raise ValueError(message)
    if datum.data:
        return np.frombuffer(datum.data, np.uint8).reshape(shape).copy()
    return np.array(datum.float_data, np.float64).reshape(shape)


# -- preprocessing --------------------------------------------------------------------------------


class Transformer:
    """Converts images to inputs of a net, and back.

    Configured steps are applied in this order: resize to the input's size, ``transpose``,
    ``channel_swap``, multiply by ``raw_scale``, subtract ``mean``, multiply by ``input_scale``.
    Methods raise an Exception for an input that the net does not have.

    Args:
        inputs: Shape of each input: ``{"data": net.blobs["data"].data.shape}``; (N, C, H, W).
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = inputs
        self.transpose: dict[str, Sequence[int]] = {}
        self.channel_swap: dict[str, Sequence[int]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Return an image preprocessed for an input; the argument is not changed.

        Shapes: (H', W', C) -> float32 (C, H, W) when ``transpose`` is (2, 0, 1).
        """
        height, width = self._shape(in_)[2:]
        image = np.array(data, np.float32)
        if image.shape[:2] != (height, width):
            image = resize_image(image, (height, width))
        if in_ in self.transpose:
            image = image.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            order = list(self.channel_swap[in_])
            try:
                image = image[order]
            except IndexError:
                message = f"got channel order {order} for an image with {len(image)} channels"
                raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, blob=in_) from None
        # in place, so that the image stays float32 with means and factors in double precision
        if in_ in self.raw_scale:
            image *= self.raw_scale[in_]
        if in_ in self.mean:
            image -= self.mean[in_]
        if in_ in self.input_scale:
            image *= self.input_scale[in_]
        return image

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Return an input of the net as an image of the same size: the inverse of ``preprocess``.

        Axes of length 1 are dropped. Shapes: (C, H, W) or (1, C, H, W).
        """
        self._shape(in_)
        image = np.array(data).squeeze()
        if in_ in self.input_scale:
            image /= self.input_scale[in_]
        if in_ in self.mean:
            image += self.mean[in_]
        if in_ in self.raw_scale:
            image /= self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of an image's axes: (2, 0, 1) converts (H, W, C) to (C, H, W).

        Another number of axes raises an Exception.
        """
        axes = len(self._shape(in_)) - 1
        if len(order) != axes:
            message = f"input {in_!r} has {axes} axes without the batch, the order is {order}"
            raise ConfigError(message, code=ErrorCode.COUNT_MISMATCH, blob=in_, expected=axes)
        self.transpose[in_] = order

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of the channels, the first axis after ``transpose``.

        (2, 1, 0) converts RGB to BGR. Another number of channels raises an Exception.
        """
        channels = self._shape(in_)[1]
        if len(order) != channels:
            message = f"input {in_!r} has {channels} channels, the order is {order}"
            raise ConfigError(message, code=ErrorCode.COUNT_MISMATCH, blob=in_, expected=channels)
        self.channel_swap[in_] = order

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Set the factor before the subtraction of the mean: 255 for nets trained on [0, 255]."""
        self._shape(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: ArrayLike) -> None:
        """Set the mean in order and scale of the input; a mean image of another size is resized.

        Shapes: (C,), or (C, H', W'), or (H, W) for one channel.

        Raises:
            ValueError: The number of channels or axes differs.
        """
        shape, mean = tuple(self._shape(in_)[1:]), np.asarray(mean)
        if mean.ndim not in {1, 2, 3}:
            message = f"a mean is (C,), (C, H, W) or (H, W), the one given is {mean.shape}"
            raise ValueError(message)
        channels = 1 if mean.ndim == 2 else len(mean)
        if channels != shape[0] and (mean.ndim == 1 or channels != 1):
            message = f"input {in_!r} has {shape[0]} channels, the mean has {channels}"
            raise ValueError(message)
        if mean.ndim == 1:
            mean = mean[:, None, None]
        elif (1, *mean.shape)[-3:] != shape:
            planes = mean if mean.ndim == 3 else mean[None]
            mean = resize_image(planes.transpose(1, 2, 0), shape[1:]).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Set the factor after the subtraction of the mean."""
        self._shape(in_)
        self.input_scale[in_] = scale

    def _shape(self, in_: str) -> Sequence[int]:
        if in_ not in self.inputs:
            message = f"{in_!r} is not an input of the net; its inputs are {list(self.inputs)}"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, blob=in_)
        return self.inputs[in_]


# -- images -------------------------------------------------------------------------------------


def load_image(
    filename: str | bytes | os.PathLike[str] | BinaryIO, color: bool = True
) -> np.ndarray:
    """Read an image from a path or from a file opened in binary mode.

    The EXIF orientation is ignored, and transparency is dropped. The image is float32, in [0, 1],
    RGB (H, W, 3), or gray (H, W, 1) if ``color`` is False.

    Raises:
        OSError: The file cannot be read, or is not an image.
        ValueError: The name is a URL; download the file first.
    """
    if isinstance(filename, str | bytes | os.PathLike):
        filename = os.fsdecode(filename)
        if "://" in filename:
            message = f"load_image reads files, not URLs: download {filename} first"
            raise ValueError(message)
        content = read_bytes(filename)
    else:
        content = filename.read()
    try:
        image = _pixels(content)
    except DataError as error:
        message = f"{filename}: {error.message}"
        raise OSError(message) from error
    if image.ndim == 2:
        return image.astype(np.float32)[:, :, None].repeat(3 if color else 1, 2)
    if not color:
        image = np.dot(image, BRIGHTNESS)[:, :, None]
    return image.astype(np.float32)


def _pixels(content: bytes) -> np.ndarray:
    """Return the pixels in a file, float64 in [0, 1]. Shape: (H, W), or (H, W, 3)."""
    with opened(content) as image:
        if image.mode in {"F", "I"} or image.mode.startswith("I;16"):
            values: np.ndarray = np.asarray(image)
            # Pillow returns the 16 bits of a PGM, and old versions those of a PNG, as 32
            narrow = image.format in {"PNG", "PPM"}
            kind = np.dtype(np.uint16) if narrow else values.dtype
            return np.asarray(values / (1.0 if kind.kind == "f" else np.iinfo(kind).max))
        return np.asarray(image.convert("L" if image.mode in {"1", "L"} else "RGB")) / 255.0


def resize_image(im: np.ndarray, new_dims: Sizes, interp_order: int = 1) -> np.ndarray:
    """Resize an image (H, W, C) of any type to float32; sizes are in pixels.

    As in Caffe, pixels of images with one or three channels are squares, and the image is extended
    with its smallest value; with other numbers of channels pixels are points. ``interp_order`` is
    the order of the spline: 0 for the nearest pixel, 1 for linear, 2 to 5.

    Raises:
        ValueError: The array does not have three axes, or a size or the order is invalid.
    """
    height, width = (int(size) for size in new_dims)
    if im.ndim != 3 or 0 in im.shape or min(height, width) < 1:
        message = (
            f"an array of shape {im.shape} cannot be resized to {tuple(new_dims)}: "
            "an image is (H, W, C), and all sizes are above 0"
        )
        raise ValueError(message)
    values = im.astype(np.float64)
    if im.shape[2] not in {1, 3}:
        result = resize_points(values, height, width, interp_order)
        if im.dtype.kind in "iu":  # Caffe's result has the type of the image
            limits = np.iinfo(im.dtype)
            result = np.floor(result + 0.5).clip(limits.min, limits.max)
        return result.astype(np.float32)
    low = float(values.min())
    if not values.max() > low:
        return np.full((height, width, im.shape[2]), low, np.float32)
    return (resize_squares(values - low, height, width, interp_order) + low).astype(np.float32)


def resize(
    image: np.ndarray, output_shape: Sequence[int], order: int = 1, mode: str = "constant",
    cval: float = 0.0, clip: bool = True, preserve_range: bool = False,
) -> np.ndarray:  # fmt: skip
    """Resize an image like scikit-image's ``transform.resize``, which scripts use by this name.

    By default the image is extended with black, which darkens its edges slightly when it grows.

    ``output_shape`` is the new height and width, in pixels, and optionally the channels.
    ``preserve_range`` keeps the range of integers instead of scaling to [0, 1]. Other arguments
    are those of ``interpolate.resize_squares``.

    Shapes: (H, W) or (H, W, C) -> float64 (height, width) or (height, width, C).

    Raises:
        ValueError: The number of axes or channels differs, or the order or the mode is invalid.
    """
    height, width, *channels = (int(size) for size in output_shape)
    if image.ndim not in {2, 3} or channels not in ([], [*image.shape[2:]]):
        message = f"an image of shape {image.shape} cannot be resized to {tuple(output_shape)}"
        raise ValueError(message)
    whole = image.dtype.kind in "iu" and not preserve_range
    scale = np.iinfo(image.dtype).max if whole else 1
    planes = image.astype(np.float64).reshape(*image.shape[:2], -1) / scale
    resized = resize_squares(planes, height, width, order, mode=mode, cval=cval, clip=clip)
    return resized.reshape(height, width, *image.shape[2:])


def oversample(images: Sequence[np.ndarray] | np.ndarray, crop_dims: Sizes) -> np.ndarray:
    """Return ten crops of each image: corners, center, and the mirror images of all five.

    Shapes: N images of one size (H, W, C) -> float32 (10 N, height, width, C).

    Raises:
        ValueError: A crop is larger than the image.
    """
    height, width = (int(size) for size in crop_dims)
    H, W, channels = images[0].shape
    down, right = H - height, W - width
    if min(down, right) < 0:
        message = f"a view of {height} x {width} pixels does not fit an image of {H} x {W}"
        raise ValueError(message)
    corners = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
    views = np.empty((len(images), 2, 5, height, width, channels), np.float32)
    for image, both in zip(images, views, strict=True):
        for view, (y, x) in enumerate(corners):
            both[0, view] = image[y : y + height, x : x + width]
        both[1] = both[0, :, :, ::-1]
    return views.reshape(-1, height, width, channels)
