"""Batches of windows cut out of images, for detectors of the R-CNN kind.

Source: Caffe, ``src/caffe/layers/window_data_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from demitasse.core.paths import read_bytes
from demitasse.errors import ConfigError, DataError, DemitasseError, ShapeError
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
    """Return what is subtracted from windows.

    Args:
        file: A mean file, whose middle is used, or None.
        values: One value, one for each channel, or none.
        channels: Of the images.
        size: Height and width of a window, in pixels.

    Returns:
        Shape (C, size, size), (C, 1, 1) or (1, 1, 1); None where there is nothing to subtract.

    Raises:
        ConfigError: Both are given.
        DataError: The file cannot be read.
        ShapeError: The file is smaller than a window, or there are other numbers of channels.
    """
    if file is not None and values:
        message = "mean_file and mean_value are both given; give one of them"
        raise ConfigError(message)
    if values and len(values) not in {1, channels}:
        message = f"mean_value is given {len(values)} times for {channels} channels"
        raise ShapeError(message)
    if file is None:
        return np.array(values, np.float32).reshape(-1, 1, 1) if values else None
    mean = read_mean(file)
    begin = (mean.shape[2] - size) // 2  # by the width, in both directions
    middle = mean[:, begin : begin + size, begin : begin + size]
    if begin < 0 or middle.shape != (channels, size, size):
        message = f"the mean {mean.shape} has no middle of ({channels}, {size}, {size})"
        raise ShapeError(message)
    return middle


class WindowBatches:
    """Fills batches with windows drawn at random, background first.

    Args:
        source: The window file, for messages.
        windows: What is in it.
        find: Where an image is.
        cut: How windows are cut out.
        batch_size: Windows in a batch.
        fraction: What share of them shows an object.
        mirror: Whether half of them, drawn at random, are mirrored left to right.
        mean: What is subtracted from the pixels; shape (C, size, size), or (C, 1, 1), or None.
        scale: What the difference is multiplied by.
        random: Random words by record.
        cache: Whether to keep the files of all images in memory.
        reading: Where to begin, and which share of the records to take.

    Raises:
        DataError: There are no windows of a kind that is needed.
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
        shown = int(np.float32(batch_size) * np.float32(fraction))  # as Caffe rounds it
        self._counts = (batch_size - shown, shown)
        self._random, self._cache = random, cache
        self._files: dict[str, bytes] = {}
        kinds = (("background", windows.background), ("foreground", windows.foreground))
        for (kind, found), count in zip(kinds, self._counts, strict=True):
            if count and not found:
                message = f"a batch has {count} {kind} windows, but the window file has none"
                raise DataError(message, str(source))

    @property
    def position(self) -> int:
        """Windows before the next batch."""
        return self._position

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, size, size) and labels (N,)."""
        N, size = sum(self._counts), self._cut.size
        return [(N, self._windows.channels, size, size), (N,)]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, size, size) and labels (N,).

        Raises:
            DataError: An image cannot be read or a window does not lie in it; names the image.
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
        """Go on to the batch after the next one."""
        self._go_on(batch)

    def close(self) -> None:
        """Let go of cached images."""
        self._files.clear()

    def _go_on(self, batch: Batch) -> None:
        self._position += sum(self._counts) * self._shard.ranks
        batch.position, batch.skipped = self._position, self._broken.count

    def _draw(self, choice: list[Window], word: int, out: np.ndarray, *, mirror: bool) -> int:
        """Put one window of some, the next good one from a random one on; return its label."""

        def put(number: int) -> int:
            window = choice[number % len(choice)]
            self._put(window, out, mirror=mirror)
            return window.label

        return self._broken.find_one(put, range(word, word + len(choice)), pass_=0)

    def _put(self, window: Window, out: np.ndarray, *, mirror: bool) -> None:
        """Put one window into ``out``; what lies outside of the image stays 0."""
        try:
            image = self._read(window.image)
            if image.shape[0] != len(out):
                message = f"the image has {image.shape[0]} channels, the file says {len(out)}"
                raise DataError(message)
            part, top, left = cut_window(image, window.box, self._cut, mirror=mirror)
        except DemitasseError as error:
            raise DataError(error.message, str(self._source), window.image) from error
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
                raise DataError(error.strerror or str(error), str(path)) from error
            if self._cache:
                self._files[name] = content
        return decode_image(content, "color")
