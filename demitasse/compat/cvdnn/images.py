"""Images into blobs and back: ``blobFromImage`` and its relatives.

Images are numpy arrays as ``cv2.imread`` returns them, (H, W) or (H, W, C). They are resized as
OpenCV resizes by default, those of uint8 to the very values.

Source: OpenCV 4, ``modules/dnn/src/dnn_utils.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.compat.cvdnn.constants import (
    CV_8U,
    CV_32F,
    DNN_LAYOUT_NCHW,
    DNN_LAYOUT_NHWC,
    DNN_PMODE_CROP_CENTER,
    DNN_PMODE_LETTERBOX,
    DNN_PMODE_NULL,
)
from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.compat.cvdnn.scalar import ScalarLike, as_scalar, as_size
from demitasse.io.data.images.resize import resize_image, resize_values

__all__ = [
    "Image2BlobParams",
    "blobFromImage",
    "blobFromImageWithParams",
    "blobFromImages",
    "blobFromImagesWithParams",
    "imagesFromBlob",
]


@dataclass
class Image2BlobParams:
    """How images become a blob.

    Attributes:
        scalefactor: What values are multiplied by, after the mean is subtracted; one number for
            each channel.
        size: Width and height of the blob, in pixels; (0, 0) leaves them as they are.
        mean: What is subtracted from each channel, in the order of the blob's channels.
        swapRB: Whether the first and the third channel change places.
        ddepth: CV_32F or CV_8U.
        datalayout: DNN_LAYOUT_NCHW or DNN_LAYOUT_NHWC.
        paddingmode: How an image of another shape is fitted: DNN_PMODE_NULL stretches it,
            DNN_PMODE_CROP_CENTER cuts off what is too long, DNN_PMODE_LETTERBOX adds a border.
        borderValue: The colour of that border, in the order of the image's channels.
    """

    scalefactor: ScalarLike = (1.0, 1.0, 1.0, 1.0)
    size: tuple[int, int] = (0, 0)
    mean: ScalarLike = (0.0, 0.0, 0.0, 0.0)
    swapRB: bool = False
    ddepth: int = CV_32F
    datalayout: int = DNN_LAYOUT_NCHW
    paddingmode: int = DNN_PMODE_NULL
    borderValue: ScalarLike = (0.0, 0.0, 0.0, 0.0)


@failing_as("blobFromImage")
def blobFromImage(
    image: np.ndarray,
    scalefactor: float = 1.0,
    size: Sequence[int] = (0, 0),
    mean: ScalarLike = (),
    swapRB: bool = False,
    crop: bool = False,
    ddepth: int = CV_32F,
) -> np.ndarray:
    """Return one image as a blob; see ``blobFromImages``.

    Shapes: image (H, W) or (H, W, C) -> (1, C, height, width).

    Raises:
        error: See ``blobFromImages``.
    """
    return blobFromImages([image], scalefactor, size, mean, swapRB, crop, ddepth)


@failing_as("blobFromImages")
def blobFromImages(
    images: Sequence[np.ndarray] | np.ndarray,
    scalefactor: float = 1.0,
    size: Sequence[int] = (0, 0),
    mean: ScalarLike = (),
    swapRB: bool = False,
    crop: bool = False,
    ddepth: int = CV_32F,
) -> np.ndarray:
    """Return images as a blob: resized, their channels swapped, less the mean, then scaled.

    Args:
        images: The images, all of 1, 3 or 4 channels.
        scalefactor: What values are multiplied by, after the mean is subtracted.
        size: Width and height of the blob, in pixels; (0, 0) takes the first image's.
        mean: What is subtracted from each channel of the blob; a single number from the first only.
        swapRB: Whether the first and the third channel change places.
        crop: Whether the image keeps its proportions, and what is too long is cut off.
        ddepth: CV_32F, or CV_8U for a blob of uint8, without ``mean`` and ``scalefactor``.

    Shapes: images (H, W) or (H, W, C) -> (N, C, height, width).

    Raises:
        error: There are no images, they do not fit each other, or an argument has a value it
            cannot have.
    """
    scale = float(scalefactor)
    return blobFromImagesWithParams(
        images,
        Image2BlobParams(
            (scale, scale, scale, scale),
            as_size(size),
            mean,
            swapRB,
            ddepth,
            paddingmode=DNN_PMODE_CROP_CENTER if crop else DNN_PMODE_NULL,
        ),
    )


@failing_as("blobFromImageWithParams")
def blobFromImageWithParams(image: np.ndarray, param: Image2BlobParams | None = None) -> np.ndarray:
    """Return one image as a blob; see ``blobFromImagesWithParams``.

    Raises:
        error: See ``blobFromImages``.
    """
    return blobFromImagesWithParams([image], param)


@failing_as("blobFromImagesWithParams")
def blobFromImagesWithParams(
    images: Sequence[np.ndarray] | np.ndarray, param: Image2BlobParams | None = None
) -> np.ndarray:
    """Return images as a blob, made as ``param`` says.

    Shapes: images (H, W) or (H, W, C) -> (N, C, height, width), or (N, height, width, C).

    Raises:
        error: See ``blobFromImages``.
    """
    p = Image2BlobParams() if param is None else param
    scale, mean = as_scalar(p.scalefactor, "scalefactor"), as_scalar(p.mean, "mean")
    if p.ddepth not in {CV_32F, CV_8U}:
        message = f"ddepth must be CV_32F (5) or CV_8U (0), not {p.ddepth}"
        raise error(message)
    if p.datalayout not in {DNN_LAYOUT_NCHW, DNN_LAYOUT_NHWC}:
        message = f"datalayout must be DNN_LAYOUT_NCHW or DNN_LAYOUT_NHWC, not {p.datalayout}"
        raise error(message)
    if p.ddepth == CV_8U and (set(scale) != {1.0} or set(mean) != {0.0}):
        message = "a blob of CV_8U has no mean and no scalefactor; use CV_32F"
        raise error(message)
    pixels = [_channels_last(image) for image in images]
    if not pixels:
        message = "there are no images"
        raise error(message)
    width, height = as_size(p.size)
    if (width, height) == (0, 0):
        height, width = pixels[0].shape[:2]
    if width <= 0 or height <= 0:
        message = f"size must be (width, height), both above 0, or (0, 0); it is {p.size}"
        raise error(message)
    pixels = [_fitted(image, width, height, p) for image in pixels]
    counts = {image.shape[2] for image in pixels}
    if len(counts) > 1:
        message = f"the images have different numbers of channels: {sorted(counts)}"
        raise error(message)
    batch = np.stack(pixels)  # (N, H, W, C)
    if p.swapRB and batch.shape[3] >= 3:
        batch = batch[..., [2, 1, 0, *range(3, batch.shape[3])]]
    if p.ddepth == CV_8U:
        if batch.dtype != np.uint8:
            message = f"a blob of CV_8U is made of images of uint8, given is {batch.dtype}"
            raise error(message)
    else:
        batch = _scaled(batch, mean[: batch.shape[3]], scale[: batch.shape[3]])
    if p.datalayout == DNN_LAYOUT_NCHW:
        batch = np.moveaxis(batch, 3, 1)
    return np.ascontiguousarray(batch)


@failing_as("imagesFromBlob")
def imagesFromBlob(blob_: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the images of a blob, their values as they are.

    Shapes: (N, C, H, W) float32 -> N of (H, W, C), or (H, W) where C is 1.

    Raises:
        error: It is no such blob.
    """
    if not isinstance(blob_, np.ndarray) or blob_.dtype != np.float32 or blob_.ndim != 4:
        found = f"{blob_.dtype} {blob_.shape}" if isinstance(blob_, np.ndarray) else type(blob_)
        message = f"a blob must be float32 (N, C, H, W), given is {found}"
        raise error(message)
    images = np.ascontiguousarray(np.moveaxis(blob_, 1, 3))
    return tuple(image[..., 0] if image.shape[2] == 1 else image for image in images)


def _channels_last(image: np.ndarray) -> np.ndarray:
    """Return an image with an axis of channels, uint8 or float32. Shape: (H, W, C)."""
    if not isinstance(image, np.ndarray):
        what = type(image).__name__
        message = f"an image must be a numpy array, it is {what}; was the file read?"
        raise error(message)
    if image.ndim not in {2, 3} or not image.size:
        message = f"an image must be (H, W) or (H, W, C) and not empty, it is {image.shape}"
        raise error(message)
    if image.dtype.kind not in "uif":
        message = f"an image must be of whole or floating point numbers, it is {image.dtype}"
        raise error(message)
    pixels = image[:, :, None] if image.ndim == 2 else image
    if pixels.shape[2] not in {1, 3, 4}:
        message = f"an image must have 1, 3 or 4 channels, it is {image.shape}"
        raise error(message)
    return pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)


def _fitted(image: np.ndarray, width: int, height: int, p: Image2BlobParams) -> np.ndarray:
    """Bring an image to a size. Shapes: (H, W, C) -> (height, width, C)."""
    H, W = image.shape[:2]
    if (height, width) == (H, W):
        return image
    across, down = np.float32(width) / np.float32(W), np.float32(height) / np.float32(H)
    if p.paddingmode == DNN_PMODE_CROP_CENTER:
        factor = float(max(across, down))
        rows, columns = round(H * factor), round(W * factor)  # halves to the even number
        whole = _resized(image, rows, columns, factor)
        top, left = int(0.5 * (rows - height)), int(0.5 * (columns - width))
        return whole[top : top + height, left : left + width]
    if p.paddingmode == DNN_PMODE_LETTERBOX:
        least = min(across, down)
        rows, columns = int(np.float32(H) * least), int(np.float32(W) * least)
        if not rows or not columns:
            message = f"an image of {W} x {H} pixels is too narrow to fit into {width} x {height}"
            raise error(message)
        top, left = (height - rows) // 2, (width - columns) // 2
        border = as_scalar(p.borderValue, "borderValue")[: image.shape[2]]
        framed = np.empty((height, width, image.shape[2]), image.dtype)
        framed[:] = np.array(border).astype(image.dtype)
        framed[top : top + rows, left : left + columns] = _resized(image, rows, columns)
        return framed
    return _resized(image, height, width)


def _resized(image: np.ndarray, height: int, width: int, factor: float | None = None) -> np.ndarray:
    """Resize; ``factor`` is the enlargement where it is not the quotient of the sizes."""
    step = None if factor is None else 1.0 / factor
    resize = resize_image if image.dtype == np.uint8 else resize_values
    return np.moveaxis(resize(np.moveaxis(image, 2, 0), height, width, step), 0, 2)


def _scaled(batch: np.ndarray, mean: Sequence[float], scale: Sequence[float]) -> np.ndarray:
    """Return (batch - mean) * scale in float32, channels last."""
    values = batch.astype(np.float32)
    if any(mean):
        values -= np.array(mean, np.float32)
    if set(scale) != {1.0}:
        values *= np.array(scale, np.float32)
    return values
