"""The images that ``run`` is shown: files, folders, lists, the frames of videos and animations."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.core.paths import is_folder, read_bytes, regular_file
from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.images.files import IMAGES, VIDEOS, files_in

if TYPE_CHECKING:
    import numpy as np

    from demitasse.io.data.images.decode import Color

__all__ = ["Picture", "pictures"]


@dataclass(frozen=True)
class Picture:
    """An image, or one frame of several.

    Attributes:
        name: What it is called: the file as it was named or found.
        place: The file's name within the folder that was named, or alone.
        frame: Which frame it is, from 0; None where there is only one.
        found: Its pixels, uint8, blue first, (C, H, W); or why there are none.
    """

    name: str
    place: Path
    frame: int | None
    found: np.ndarray | DataError

    def pixels(self) -> np.ndarray:
        """Return the pixels.

        Raises:
            DataError: There are none.
        """
        if isinstance(self.found, DataError):
            raise self.found
        return self.found


def pictures(names: Iterable[str], color: Color, every: int = 1) -> Iterator[Picture]:
    """Yield images one after the other, each read when it is asked for.

    Args:
        names: Files; folders, whose images and videos come in the order of their names, those in
            folders below too; "-" for names on standard input, one in a line.
        color: Which channels are wanted.
        every: Of several frames, every how manieth.
    """
    for name in names:
        if name == "-":
            listed = (line.rstrip("\r\n") for line in sys.stdin)
            yield from pictures((line for line in listed if line not in {"", "-"}), color, every)
        elif is_folder(name):
            yield from _in_folder(Path(name), color, every)
        else:
            yield from _frames(Path(name), Path(Path(name).name), color, every)


def _in_folder(folder: Path, color: Color, every: int) -> Iterator[Picture]:
    found = False
    try:
        for path in files_in(folder, IMAGES | VIDEOS):
            found = True
            yield from _frames(path, path.relative_to(folder), color, every)
    except OSError as error:
        why = DataError(f"{error.filename}: {error.strerror or error}")
        yield Picture(str(folder), Path(folder.name), None, why)
        return
    if not found:
        why = DataError("the folder holds no images and no videos")
        yield Picture(str(folder), Path(folder.name), None, why)


def _frames(path: Path, place: Path, color: Color, every: int) -> Iterator[Picture]:
    """Yield the frames of a file, or its one image."""
    from itertools import islice

    name = str(path)
    frames = _video(path) if path.suffix.lower() in VIDEOS else _image(path, color)
    held: list[np.ndarray] = []
    number = 0
    try:
        held += islice(frames, 2)
        single = len(held) == 1
        if single:
            yield Picture(name, place, None, held.pop())
            return
        for number, frame in enumerate(_again(held, frames)):
            if number % every == 0:
                yield Picture(name, place, number, frame)
    except OSError as error:
        yield Picture(name, place, None, DataError(error.strerror or str(error)))
    except DataError as error:
        yield Picture(name, place, number + 1 if number else None, DataError(error.message))


def _again(held: list[np.ndarray], rest: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    while held:
        yield held.pop(0)
    yield from rest


def _image(path: Path, color: Color) -> Iterator[np.ndarray]:
    from demitasse.io.data.images.decode import decode_frames

    yield from decode_frames(read_bytes(path), color)


def _video(path: Path) -> Iterator[np.ndarray]:
    """Yield the frames of a video, read by OpenCV."""
    try:
        import cv2
    except ImportError:
        message = "videos are read by OpenCV; run: pip install 'demitasse[video]'"
        raise DataError(message, code=ErrorCode.UNAVAILABLE, extra="video") from None
    capture = cv2.VideoCapture(str(regular_file(path).resolve()))
    try:
        count = 0
        while True:
            good, frame = capture.read()
            if not good:
                break
            count += 1
            yield frame.transpose(2, 0, 1)
        if not count:
            message = "OpenCV can read no frame of this video"
            raise DataError(message, code=ErrorCode.UNREADABLE)
    finally:
        capture.release()
