"""Convert images to blobs and back: ``blobFromImage`` and its relatives.

Images are numpy arrays like those of ``cv2.imread``, (H, W) or (H, W, C). They are resized like
OpenCV's default, uint8 images to identical values.

Source: OpenCV 4, ``modules/dnn/src/dnn_utils.cpp``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.compat.cvdnn import constants as cv
from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.errors import ErrorCode
from demitasse.io.data.images.resize import resize_image, resize_values

Scalar = tuple[float, float, float, float]

ScalarLike = float | Sequence[float]

ROUNDED = (np.uint8, np.uint16, np.int16)
"""Types of images that keep their type when they are resized."""


@dataclass
class Image2BlobParams:
    """Parameters of the conversion of images to a blob.

    Attributes:
        scalefactor: Factors after the subtraction of the mean, one per channel.
        size: Width and height of the blob, in pixels; (0, 0) keeps the images' size.
        mean: Mean of each channel, in the order of the blob's channels.
        swapRB: Swap the first and the third channel.
        ddepth: CV_32F or CV_8U.
        datalayout: DNN_LAYOUT_NCHW or DNN_LAYOUT_NHWC.
        paddingmode: Treatment of another aspect ratio: DNN_PMODE_NULL stretches the image,
            DNN_PMODE_CROP_CENTER crops it, DNN_PMODE_LETTERBOX adds a border.
        borderValue: Color of the border, in the order of the image's channels.
    """

    scalefactor: ScalarLike = (1.0, 1.0, 1.0, 1.0)
    size: tuple[int, int] = (0, 0)
    mean: ScalarLike = (0.0, 0.0, 0.0, 0.0)
    swapRB: bool = False
    ddepth: int = cv.CV_32F
    datalayout: int = cv.DNN_LAYOUT_NCHW
    paddingmode: int = cv.DNN_PMODE_NULL
    borderValue: ScalarLike = (0.0, 0.0, 0.0, 0.0)


@failing_as("blobFromImage")
def blobFromImage(
    image: np.ndarray, scalefactor: float | None = 1.0, size: Sequence[int] | None = (0, 0),
    mean: ScalarLike | None = (), swapRB: bool = False, crop: bool = False, ddepth: int = cv.CV_32F,
) -> np.ndarray:  # fmt: skip
    """Return one image as a blob; see ``blobFromImages``.

    Shapes: image (H, W) or (H, W, C) -> (1, C, height, width).
    """
    return blobFromImages([image], scalefactor, size, mean, swapRB, crop, ddepth)


@failing_as("blobFromImages")
def blobFromImages(
    images: Sequence[np.ndarray] | np.ndarray, scalefactor: float | None = 1.0,
    size: Sequence[int] | None = (0, 0), mean: ScalarLike | None = (), swapRB: bool = False,
    crop: bool = False, ddepth: int = cv.CV_32F,
) -> np.ndarray:  # fmt: skip
    """Return images as a blob: resize, swap channels, subtract the mean, then scale.

    Args:
        images: Images with equal numbers of channels: 1, 3 or 4.
        scalefactor: Factor after the subtraction of the mean.
        size: Width and height of the blob, in pixels; (0, 0) or None for the first image's size.
        mean: Mean of each channel of the blob; a single number applies to the first channel only.
            None subtracts nothing.
        swapRB: Swap the first and the third channel.
        crop: Keep the aspect ratio, and crop the longer side.
        ddepth: CV_32F, or CV_8U for a blob of uint8, without ``mean`` and ``scalefactor``.

    Shapes: images (H, W) or (H, W, C) -> (N, C, height, width).

    Raises:
        error: There are no images, they do not fit together, or an argument is invalid.
    """
    mode = cv.DNN_PMODE_CROP_CENTER if crop else cv.DNN_PMODE_NULL
    scale = (float(1 if scalefactor is None else scalefactor),) * 4
    mean = as_scalar(mean, "mean")
    params = Image2BlobParams(scale, as_size(size), mean, swapRB, ddepth, paddingmode=mode)
    return blobFromImagesWithParams(images, params)


@failing_as("blobFromImageWithParams")
def blobFromImageWithParams(image: np.ndarray, param: Image2BlobParams | None = None) -> np.ndarray:
    """Return one image as a blob; see ``blobFromImagesWithParams``."""
    return blobFromImagesWithParams([image], param)


@failing_as("blobFromImagesWithParams")
def blobFromImagesWithParams(
    images: Sequence[np.ndarray] | np.ndarray, param: Image2BlobParams | None = None
) -> np.ndarray:
    """Return images as a blob, converted by ``param``; errors are those of ``blobFromImages``.

    Shapes: images (H, W) or (H, W, C) -> (N, C, height, width), or (N, height, width, C).
    """
    p = Image2BlobParams() if param is None else param
    scale, mean = as_scalar(p.scalefactor, "scalefactor"), as_scalar(p.mean, "mean")
    if p.ddepth not in {cv.CV_32F, cv.CV_8U}:
        message = f"ddepth must be CV_32F (5) or CV_8U (0), not {p.ddepth}"
        raise error(message, code=ErrorCode.UNKNOWN, field="ddepth", got=p.ddepth)
    if p.datalayout not in {cv.DNN_LAYOUT_NCHW, cv.DNN_LAYOUT_NHWC}:
        message = f"datalayout must be DNN_LAYOUT_NCHW or DNN_LAYOUT_NHWC, not {p.datalayout}"
        raise error(message, code=ErrorCode.UNKNOWN, field="datalayout", got=p.datalayout)
    if p.ddepth == cv.CV_8U and (set(scale) != {1.0} or set(mean) != {0.0}):
        message = "a blob of CV_8U has no mean and no scalefactor; use CV_32F"
        raise error(message, code=ErrorCode.CONFLICT, field="ddepth")
    pixels = [_channels_last(image) for image in images]
    if not pixels:
        message = "there are no images"
        raise error(message, code=ErrorCode.MISSING, field="images")
    width, height = as_size(p.size)
    if (width, height) == (0, 0):
        height, width = pixels[0].shape[:2]
    if width <= 0 or height <= 0:
        message = f"size must be (width, height), both above 0, or (0, 0); it is {p.size}"
        raise error(message, code=ErrorCode.OUT_OF_RANGE, field="size", got=p.size)
    pixels = [_fitted(image, width, height, p) for image in pixels]
    counts = {image.shape[2] for image in pixels}
    if len(counts) > 1:
        message = f"the images have different numbers of channels: {sorted(counts)}"
        raise error(message, code=ErrorCode.COUNT_MISMATCH, field="images", got=sorted(counts))
    batch = np.stack(pixels)  # (N, H, W, C)
    if p.swapRB and batch.shape[3] >= 3:
        batch = batch[..., [2, 1, 0, *range(3, batch.shape[3])]]
    if p.ddepth == cv.CV_8U:
        if batch.dtype != np.uint8:
            message = f"a blob of CV_8U needs images of uint8, got {batch.dtype}"
            raise error(message, code=ErrorCode.DTYPE_MISMATCH, got=str(batch.dtype))
    else:
        batch = _scaled(batch, mean[: batch.shape[3]], scale[: batch.shape[3]])
    if p.datalayout == cv.DNN_LAYOUT_NCHW:
        batch = np.moveaxis(batch, 3, 1)
    return np.ascontiguousarray(batch)


@failing_as("imagesFromBlob")
def imagesFromBlob(blob_: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the images of a blob, without scaling.

    Shapes: (N, C, H, W) float32 -> N of (H, W, C), or (H, W) where C is 1.

    Raises:
        error: The blob is not float32 with four axes.
    """
    if not isinstance(blob_, np.ndarray) or blob_.dtype != np.float32 or blob_.ndim != 4:
        what = f"{blob_.dtype} {blob_.shape}" if isinstance(blob_, np.ndarray) else type(blob_)
        message = f"a blob must be float32 (N, C, H, W), got {what}"
        raise error(message, code=ErrorCode.SHAPE_MISMATCH, field="blob_")
    images = np.ascontiguousarray(np.moveaxis(blob_, 1, 3))
    return tuple(image[..., 0] if image.shape[2] == 1 else image for image in images)


def _channels_last(image: np.ndarray) -> np.ndarray:
    """Return an image with a channel axis, in float32 or ``ROUNDED``. Shape: (H, W, C)."""
    if not isinstance(image, np.ndarray):
        what = type(image).__name__
        message = f"an image must be a numpy array, it is {what}; was the file read?"
        raise error(message, code=ErrorCode.INVALID, field="image", got=what)
    if image.ndim not in {2, 3} or not image.size:
        message = f"an image must be (H, W) or (H, W, C) and not empty, it is {image.shape}"
        raise error(message, code=ErrorCode.SHAPE_MISMATCH, field="image", got=image.shape)
    if image.dtype.kind not in "uif":
        message = f"an image must be of whole or floating point numbers, it is {image.dtype}"
        raise error(message, code=ErrorCode.DTYPE_MISMATCH, field="image", got=str(image.dtype))
    pixels = image[:, :, None] if image.ndim == 2 else image
    if pixels.shape[2] not in {1, 3, 4}:
        message = f"an image must have 1, 3 or 4 channels, it is {image.shape}"
        raise error(message, code=ErrorCode.SHAPE_MISMATCH, field="image", got=image.shape)
    return pixels if pixels.dtype in ROUNDED else pixels.astype(np.float32)


def _fitted(image: np.ndarray, width: int, height: int, p: Image2BlobParams) -> np.ndarray:
    """Resize an image by the padding mode. Shapes: (H, W, C) -> (height, width, C)."""
    H, W = image.shape[:2]
    if (height, width) == (H, W):
        return image
    across, down = np.float32(width) / np.float32(W), np.float32(height) / np.float32(H)
    if p.paddingmode == cv.DNN_PMODE_CROP_CENTER:
        factor = float(max(across, down))
        rows, columns = round(H * factor), round(W * factor)  # rounds half to even
        resized = _resized(image, rows, columns, factor)
        top, left = int(0.5 * (rows - height)), int(0.5 * (columns - width))
        return resized[top : top + height, left : left + width]
    if p.paddingmode == cv.DNN_PMODE_LETTERBOX:
        smallest = min(across, down)
        rows, columns = int(np.float32(H) * smallest), int(np.float32(W) * smallest)
        if not rows or not columns:
            message = f"an image of {W} x {H} pixels is too narrow to fit into {width} x {height}"
            raise error(message, code=ErrorCode.OUT_OF_RANGE, field="image", got=image.shape)
        top, left = (height - rows) // 2, (width - columns) // 2
        border = as_scalar(p.borderValue, "borderValue")[: image.shape[2]]
        framed = np.empty((height, width, image.shape[2]), image.dtype)
        framed[:] = np.array(border).astype(image.dtype)
        framed[top : top + rows, left : left + columns] = _resized(image, rows, columns)
        return framed
    return _resized(image, height, width)


def _resized(image: np.ndarray, height: int, width: int, factor: float | None = None) -> np.ndarray:
    """Resize; ``factor`` is the magnification if it differs from the quotient of the sizes."""
    step = None if factor is None else 1.0 / factor
    resize = resize_image if image.dtype == np.uint8 else resize_values
    found = np.moveaxis(resize(np.moveaxis(image, 2, 0), height, width, step), 0, 2)
    kept = image.dtype in ROUNDED and image.dtype != found.dtype
    result: np.ndarray = np.rint(found).astype(image.dtype) if kept else found
    return result


def _scaled(batch: np.ndarray, mean: Sequence[float], scale: Sequence[float]) -> np.ndarray:
    """Return (batch - mean) * scale in float32, channels last."""
    values = batch.astype(np.float32)
    if any(mean):
        values -= np.array(mean, np.float32)
    if set(scale) != {1.0}:
        values *= np.array(scale, np.float32)
    return values


def as_scalar(values: ScalarLike | None, what: str) -> Scalar:
    """Return OpenCV's Scalar: four numbers, padded with 0; more numbers are an ``error``."""
    numbers = () if values is None else tuple(float(value) for value in np.ravel(values))
    if len(numbers) > 4:
        message = f"{what} has at most four numbers, one per channel, got {len(numbers)}"
        raise error(message, code=ErrorCode.COUNT_MISMATCH, field=what, got=len(numbers))
    first, second, third, fourth = (*numbers, 0.0, 0.0, 0.0, 0.0)[:4]
    return first, second, third, fourth


def as_size(size: int | Sequence[int | Sequence[int]] | None) -> tuple[int, int]:
    """Return OpenCV's Size, width and height; other than two numbers are an ``error``."""
    numbers = [0, 0] if size is None else [int(number) for number in np.ravel(size)]
    if len(numbers) != 2:
        message = f"size must be (width, height), it is {size!r}"
        raise error(message, code=ErrorCode.COUNT_MISMATCH, field="size", got=size)
    return numbers[0], numbers[1]
