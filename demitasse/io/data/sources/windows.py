"""Window files, and batches of windows cropped from images, for detectors of the R-CNN kind.

A window file has for each image::

    # index
    path
    channels
    height
    width
    number of windows
    class overlap x1 y1 x2 y2      (one line for each window)

Source: Caffe, ``src/caffe/layers/window_data_layer.cpp``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from demitasse.core.deprecated import renamed_arguments
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode, ShapeError
from demitasse.io.data.bad_records import located_entry, read_file
from demitasse.io.data.images.codecs import decode_image
from demitasse.io.data.images.crop import WindowCrop, crop_window
from demitasse.io.data.redaction import read_list_file
from demitasse.io.data.sources.source import Batch, ReaderConfig, Shape
from demitasse.io.data.transform.mean import check_channel_values, read_mean
from demitasse.io.data.transform.random import RecordRandom


@dataclass(frozen=True)
class Window:
    """A rectangle in an image: class (0 for background), and inclusive x1, y1, x2, y2 in pixels."""

    image: str
    label: int
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class WindowFile:
    """Contents of a window file: channels of its images, windows with and without an object."""

    channels: int
    foreground: list[Window]
    background: list[Window]


def read_window_file(source: Path, fg_threshold: float, bg_threshold: float) -> WindowFile:
    """Read a window file.

    Foreground windows have at least the overlap ``fg_threshold``, background windows have less than
    ``bg_threshold``; windows in between are dropped. Overlaps are compared as float32.
    """
    words = iter(read_list_file(source, "window file").split())
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
            for _ in range(int(next(words))):
                label, overlap = int(next(words)), np.float32(next(words))  # Caffe's precision
                x1, y1, x2, y2 = map(int, islice(words, 4))
                box = (x1, y1, x2, y2)
                if overlap >= fg_threshold:
                    if label < 1:
                        message = f"a foreground window (overlap {overlap:g}) has class {label}"
                        code = ErrorCode.OUT_OF_RANGE
                        raise DataError(
                            message, str(source), index, code=code, field="class", got=label
                        )
                    foreground.append(Window(image, label, box))
                elif overlap < bg_threshold:
                    background.append(Window(image, 0, box))
    except (ValueError, StopIteration) as error:
        message = "the window file ends early, or has other text in place of a number"
        raise DataError(message, str(source), index, code=ErrorCode.UNREADABLE) from error
    if not channels:
        message = "the window file is empty"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    return WindowFile(channels, foreground, background)


def window_mean(
    file: Path | None, values: Sequence[float], channels: int, size: int
) -> np.ndarray | None:
    """Return the center of a mean file, or values. Shape: (C, size, size), (C, 1, 1), (1, 1, 1)."""
    if file is not None and values:
        message = "mean_file and mean_value are both given; give one of them"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="mean_value")
    if values:
        check_channel_values("mean_value", len(values), channels)
    if file is None:
        return np.array(values, np.float32).reshape(-1, 1, 1) if values else None
    mean = read_mean(file)
    begin = (mean.shape[2] - size) // 2  # Caffe uses the width for both directions
    middle = mean[:, begin : begin + size, begin : begin + size]
    if begin < 0 or middle.shape != (channels, size, size):
        expected, code = (channels, size, size), ErrorCode.SHAPE_MISMATCH
        message = f"got a mean of {mean.shape}, expected at least {expected}"
        raise ShapeError(message, code=code, field="mean_file", got=mean.shape, expected=expected)
    return middle


class WindowBatches:
    """Fills batches with random windows, background first.

    ``fraction`` is the share of foreground windows, ``mean`` is (C, size, size) or (C, 1, 1), and
    ``cache`` keeps all image files in memory. ``position`` is the number of windows used before the
    next batch. A file without windows of a needed kind is a DataError.
    """

    @renamed_arguments(reading="config")
    def __init__(
        self, source: Path, windows: WindowFile, find: Callable[[str], Path], cut: WindowCrop,
        batch_size: int, fraction: float, *, mirror: bool = False, mean: np.ndarray | None = None,
        scale: float = 1.0, random: RecordRandom, cache: bool = False,
        config: ReaderConfig | None = None,
    ) -> None:  # fmt: skip
        config = config or ReaderConfig()
        self._policy, self._shard = config.bad_records, config.shard
        self.position = config.position
        self._source, self._windows, self._find = source, windows, find
        self._cut, self._mirror, self._mean, self._scale = cut, mirror, mean, scale
        shown = int(np.float32(batch_size) * np.float32(fraction))  # Caffe's rounding
        self._counts = (batch_size - shown, shown)
        self._random, self._cache = random, cache
        self._files: dict[str, bytes] = {}
        kinds = (("background", windows.background), ("foreground", windows.foreground))
        for (kind, found), count in zip(kinds, self._counts, strict=True):
            if count and not found:
                message = f"a batch needs {count} {kind} windows, but the window file has none"
                raise DataError(message, str(source), code=ErrorCode.MISSING, kind=kind)

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, size, size) and labels (N,)."""
        N, size = sum(self._counts), self._cut.size
        return [(N, self._windows.channels, size, size), (N,)]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, size, size) and labels (N,)."""
        data, labels = (batch.array(i, shape) for i, shape in enumerate(self.shapes()))
        count, world_size = len(labels), self._shard.world_size
        data[...] = 0
        words = self._random(self.position + self._shard.rank, count, world_size)
        for index in range(count):
            shown = index >= self._counts[0]
            choice = self._windows.foreground if shown else self._windows.background
            mirror = self._mirror and bool(words[index, 1] & 1)
            labels[index] = self._draw(choice, int(words[index, 0]), data[index], mirror=mirror)
        self.skip(batch)

    def skip(self, batch: Batch) -> None:
        self.position += sum(self._counts) * self._shard.world_size
        batch.position, batch.skipped = self.position, self._policy.count

    def close(self) -> None:
        """Drop cached images."""
        self._files.clear()

    def _draw(self, choice: list[Window], word: int, out: np.ndarray, *, mirror: bool) -> int:
        """Write a random window, or the next good one, to ``out``; return its label."""

        def put(number: int) -> int:
            window = choice[number % len(choice)]
            self._put(window, out, mirror=mirror)
            return window.label

        return self._policy.find_one(put, range(word, word + len(choice)), pass_=0)

    def _put(self, window: Window, out: np.ndarray, *, mirror: bool) -> None:
        """Write one window to ``out``; pixels outside the image stay 0."""
        try:
            image = self._read(window.image)
            got, expected, code = image.shape[0], len(out), ErrorCode.COUNT_MISMATCH
            if got != expected:
                message = f"got an image of {got} channels, expected {expected}"
                raise DataError(message, code=code, field="channels", got=got, expected=expected)
            part, top, left = crop_window(image, window.box, self._cut, mirror=mirror)
        except DemitasseError as error:
            raise located_entry(error, str(self._source), window.image) from error
        place = (..., slice(top, top + part.shape[1]), slice(left, left + part.shape[2]))
        target = out[place]
        if self._mean is None:
            target[...] = part
        else:
            np.subtract(part, self._mean if self._mean.shape[1] == 1 else self._mean[place], target)
        if self._scale != 1:
            target *= self._scale

    def _read(self, name: str) -> np.ndarray:
        content = self._files.get(name)
        if content is None:
            content = read_file(self._find(name))
            if self._cache:
                self._files[name] = content
        return decode_image(content, "color")
