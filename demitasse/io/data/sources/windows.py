"""Batches of windows cropped from images, for detectors of the R-CNN kind.

Source: Caffe, ``src/caffe/layers/window_data_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from demitasse.core.paths import code_of, read_bytes
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode, ShapeError
from demitasse.io.data.broken import located
from demitasse.io.data.images.decode import decode_image
from demitasse.io.data.images.window import Cut, cut_window
from demitasse.io.data.sources.source import Batch, Reading, Shape
from demitasse.io.data.sources.window_file import Window, WindowFile
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.data.transform.random import RecordRandom

__all__ = ["WindowBatches", "window_mean"]


def window_mean(
    file: Path | None, values: Sequence[float], channels: int, size: int
) -> np.ndarray | None:
    """Return the mean of windows.

    Args:
        file: A mean file, whose center is used, or None.
        values: One value, one per channel, or none.
        channels: Channels of the images.
        size: Height and width of a window, in pixels.

    Returns:
        Shape (C, size, size), (C, 1, 1) or (1, 1, 1); None without a mean.

    Raises:
        ConfigError: Both are given.
        DataError: The file cannot be read.
        ShapeError: The file is smaller than a window, or the number of channels differs.
    """
    if file is not None and values:
        message = "mean_file and mean_value are both given; give one of them"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="mean_value")
    if values and len(values) not in {1, channels}:
        message = f"got {len(values)} mean_value, expected 1 or {channels} (channels)"
        raise ShapeError(
            message,
            code=ErrorCode.COUNT_MISMATCH,
            field="mean_value",
            got=len(values),
            expected=channels,
        )
    if file is None:
        return np.array(values, np.float32).reshape(-1, 1, 1) if values else None
    mean = read_mean(file)
    begin = (mean.shape[2] - size) // 2  # Caffe uses the width for both directions
    middle = mean[:, begin : begin + size, begin : begin + size]
    if begin < 0 or middle.shape != (channels, size, size):
        expected = (channels, size, size)
        message = f"got a mean of {mean.shape}, expected at least {expected}"
        raise ShapeError(
            message,
            code=ErrorCode.SHAPE_MISMATCH,
            field="mean_file",
            got=mean.shape,
            expected=expected,
        )
    return middle


class WindowBatches:
    """Fills batches with random windows, background first.

    Args:
        source: The window file, for messages.
        windows: Its windows.
        find: Returns the path of an image name.
        cut: Options of the crops.
        batch_size: Windows per batch.
        fraction: Share of foreground windows.
        mirror: Flip half of the windows, at random.
        mean: Mean of shape (C, size, size) or (C, 1, 1), or None.
        scale: Factor after the subtraction.
        random: Random words by record.
        cache: Keep all image files in memory.
        reading: Start position, shard and policy for bad records.

    Raises:
        DataError: The file has no windows of a needed kind.
    """

    def __init__(
        self,
        source: Path,
        windows: WindowFile,
        find: Callable[[str], Path],
        cut: Cut,
        batch_size: int,
        fraction: float,
        *,
        mirror: bool = False,
        mean: np.ndarray | None = None,
        scale: float = 1.0,
        random: RecordRandom,
        cache: bool = False,
        reading: Reading | None = None,
    ) -> None:
        reading = reading or Reading()
        self._broken, self._position, self._shard = reading.broken, reading.position, reading.shard
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

    @property
    def position(self) -> int:
        """Windows used before the next batch."""
        return self._position

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, size, size) and labels (N,)."""
        N, size = sum(self._counts), self._cut.size
        return [(N, self._windows.channels, size, size), (N,)]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, size, size) and labels (N,).

        Raises:
            DataError: An image cannot be read, or a window lies outside; names the image.
        """
        data, labels = (batch.array(i, shape) for i, shape in enumerate(self.shapes()))
        count, ranks = len(labels), self._shard.ranks
        data[...] = 0
        words = self._random(self._position + self._shard.rank, count, ranks)
        for index in range(count):
            shown = index >= self._counts[0]
            choice = self._windows.foreground if shown else self._windows.background
            mirror = self._mirror and bool(words[index, 1] & 1)
            labels[index] = self._draw(choice, int(words[index, 0]), data[index], mirror=mirror)
        self._go_on(batch)

    def leave_out(self, batch: Batch) -> None:
        """Skip the next batch."""
        self._go_on(batch)

    def close(self) -> None:
        """Drop cached images."""
        self._files.clear()

    def _go_on(self, batch: Batch) -> None:
        self._position += sum(self._counts) * self._shard.ranks
        batch.position, batch.skipped = self._position, self._broken.count

    def _draw(self, choice: list[Window], word: int, out: np.ndarray, *, mirror: bool) -> int:
        """Write a random window, or the next good one, to ``out``; return its label."""

        def put(number: int) -> int:
            window = choice[number % len(choice)]
            self._put(window, out, mirror=mirror)
            return window.label

        return self._broken.find_one(put, range(word, word + len(choice)), pass_=0)

    def _put(self, window: Window, out: np.ndarray, *, mirror: bool) -> None:
        """Write one window to ``out``; pixels outside the image stay 0."""
        try:
            image = self._read(window.image)
            if image.shape[0] != len(out):
                message = f"got an image of {image.shape[0]} channels, expected {len(out)}"
                raise DataError(
                    message,
                    code=ErrorCode.COUNT_MISMATCH,
                    field="channels",
                    got=image.shape[0],
                    expected=len(out),
                )
            part, top, left = cut_window(image, window.box, self._cut, mirror=mirror)
        except DemitasseError as error:
            raise located(error, str(self._source), window.image) from error
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
            path = self._find(name)
            try:
                content = read_bytes(path)
            except OSError as error:
                raise DataError(
                    error.strerror or str(error), str(path), code=code_of(error)
                ) from error
            if self._cache:
                self._files[name] = content
        return decode_image(content, "color")
