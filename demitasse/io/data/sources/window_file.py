"""Window files: images, and rectangles in them that overlap an object more or less.

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

from demitasse.core.paths import read_failure, read_text
from demitasse.errors import DataError

__all__ = ["Window", "WindowFile", "read_window_file"]


@dataclass(frozen=True)
class Window:
    """A rectangle in an image, its corners included.

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
    """What a window file holds.

    Attributes:
        channels: Of its images.
        foreground: Windows that show an object.
        background: Windows that show none.
    """

    channels: int
    foreground: list[Window]
    background: list[Window]


def read_window_file(source: Path, fg_threshold: float, bg_threshold: float) -> WindowFile:
    """Read a window file.

    Args:
        source: The file.
        fg_threshold: Overlap from which a window is foreground.
        bg_threshold: Overlap below which one is background; those between are left out.

    Raises:
        DataError: It cannot be read, is not of this form, or a foreground window has no class.
    """
    try:
        words = iter(read_text(source).split())
    except OSError as error:
        message = f"the window file cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source)) from error
    channels, index = 0, ""
    foreground: list[Window] = []
    background: list[Window] = []
    try:
        for mark in words:
            if mark != "#":
                after = f"the one after number {index} does not" if index else "the first does not"
                message = f"an image begins with '# index', {after}; is this a window file?"
                raise DataError(message, str(source))
            index = str(int(next(words)))
            image = next(words)
            channels = int(next(words))
            for _ in range(2):  # height and width: the image itself says them
                int(next(words))
            for label, overlap, box in _windows(words):
                if overlap >= fg_threshold:
                    if label < 1:
                        message = f"a foreground window (overlap {overlap:g}) has class {label}"
                        raise DataError(message, str(source), index)
                    foreground.append(Window(image, label, box))
                elif overlap < bg_threshold:
                    background.append(Window(image, 0, box))
    except DataError:
        raise
    except (ValueError, StopIteration, RuntimeError) as error:  # the last: from the generator
        message = "the window file breaks off or holds something else than a number here"
        raise DataError(message, str(source), index) from error
    if not channels:
        message = "the window file is empty"
        raise DataError(message, str(source))
    return WindowFile(channels, foreground, background)


def _windows(words: Iterator[str]) -> Iterator[tuple[int, float, tuple[int, int, int, int]]]:
    for _ in range(int(next(words))):
        label, overlap = int(next(words)), float(next(words))
        x1, y1, x2, y2 = (int(next(words)) for _ in range(4))
        yield label, overlap, (x1, y1, x2, y2)
