"""Window files: images with rectangles, and their overlap with objects.

For each image::

    # index
    path
    channels
    height
    width
    number of windows
    class overlap x1 y1 x2 y2      (one line for each window)

Source: Caffe, ``src/caffe/layers/window_data_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demitasse.core.paths import code_of, read_failure, read_text
from demitasse.errors import DataError, ErrorCode

__all__ = ["Window", "WindowFile", "read_window_file"]


@dataclass(frozen=True)
class Window:
    """A rectangle in an image, corners inclusive.

    Attributes:
        image: Path of the image, as written.
        label: Class, 0 for background.
        box: x1, y1, x2, y2, in pixels.
    """

    image: str
    label: int
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class WindowFile:
    """Contents of a window file.

    Attributes:
        channels: Channels of its images.
        foreground: Windows with an object.
        background: Windows without an object.
    """

    channels: int
    foreground: list[Window]
    background: list[Window]


def read_window_file(source: Path, fg_threshold: float, bg_threshold: float) -> WindowFile:
    """Read a window file.

    Args:
        source: The file.
        fg_threshold: Least overlap of foreground windows.
        bg_threshold: Background windows have less overlap; windows in between are dropped.

    Raises:
        DataError: The file cannot be read or is malformed, or a foreground window has no class.
    """
    try:
        words = iter(read_text(source).split())
    except OSError as error:
        message = f"the window file cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source), code=code_of(error)) from error
    channels, index = 0, ""
    foreground: list[Window] = []
    background: list[Window] = []
    try:
        for mark in words:
            if mark != "#":
                after = f"after image number {index}" if index else "at its beginning"
                message = f"expected '# index' {after}; is this a window file?"
                raise DataError(message, str(source), code=ErrorCode.UNREADABLE)
            index = str(int(next(words)))
            image = next(words)
            channels = int(next(words))
            for _ in range(2):  # height and width: unused, the image has them
                int(next(words))
            for label, overlap, box in _windows(words):
                if overlap >= fg_threshold:
                    if label < 1:
                        message = f"a foreground window (overlap {overlap:g}) has class {label}"
                        raise DataError(
                            message,
                            str(source),
                            index,
                            code=ErrorCode.OUT_OF_RANGE,
                            field="class",
                            got=label,
                        )
                    foreground.append(Window(image, label, box))
                elif overlap < bg_threshold:
                    background.append(Window(image, 0, box))
    except DataError:
        raise
    except (ValueError, StopIteration, RuntimeError) as error:  # RuntimeError: of the generator
        message = "the window file ends early, or has other text in place of a number"
        raise DataError(message, str(source), index, code=ErrorCode.UNREADABLE) from error
    if not channels:
        message = "the window file is empty"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    return WindowFile(channels, foreground, background)


def _windows(words: Iterator[str]) -> Iterator[tuple[int, float, tuple[int, int, int, int]]]:
    for _ in range(int(next(words))):
        label, overlap = int(next(words)), float(next(words))
        x1, y1, x2, y2 = (int(next(words)) for _ in range(4))
        yield label, overlap, (x1, y1, x2, y2)
