"""Images that ``run`` reads, and text, JSON and PNG files that it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.cli.render import terminal_width
from demitasse.core.extras import lacks_extra, needs_extra
from demitasse.core.paths import is_folder, read_bytes, regular_file
from demitasse.core.text import escaped
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.images.codecs import IMAGES, VIDEOS, decode_frames, files_in

if TYPE_CHECKING:
    import numpy as np

    from demitasse.inference.cards import Prediction
    from demitasse.io.data.images.codecs import Color


@dataclass(frozen=True)
class ImageInput:
    """An image, or one frame of several.

    Attributes:
        place: Path relative to the given folder, or the file's name.
        frame: Number of the frame, from 0; None for a single image.
        found: The pixels, uint8, blue first, (C, H, W); or the error of reading them.
    """

    name: str
    place: Path
    frame: int | None
    found: np.ndarray | DataError

    def pixels(self) -> np.ndarray:
        """Return the pixels; raise the error of an image that could not be read."""
        if isinstance(self.found, DataError):
            raise self.found
        return self.found


def read_images(names: Iterable[str], color: Color, every: int = 1) -> Iterator[ImageInput]:
    """Yield images, each read on demand, in files, folders and subfolders, sorted by name.

    The name "-" reads names from standard input, one per line. ``every`` is the step between the
    frames of videos and animations.
    """
    for name in names:
        if name == "-":
            listed = (line.rstrip("\r\n") for line in sys.stdin)
            yield from read_images((line for line in listed if line not in {"", "-"}), color, every)
        elif is_folder(name):
            yield from _in_folder(Path(name), color, every)
        else:
            yield from _read_frames(Path(name), Path(Path(name).name), color, every)


def _in_folder(folder: Path, color: Color, every: int) -> Iterator[ImageInput]:
    fault: DataError | None
    fault = DataError("the folder has no images and no videos", code=ErrorCode.MISSING)
    try:
        for path in files_in(folder, IMAGES | VIDEOS):
            fault = None
            yield from _read_frames(path, path.relative_to(folder), color, every)
    except OSError as error:
        why = f"{error.filename}: {error.strerror or error}"
        fault = DataError(why, code=ErrorCode.UNREADABLE)
    if fault is not None:
        yield ImageInput(str(folder), Path(folder.name), None, fault)


def _read_frames(path: Path, place: Path, color: Color, every: int) -> Iterator[ImageInput]:
    name, number = str(path), 0
    try:
        is_video = path.suffix.lower() in VIDEOS
        frames = _video_frames(path) if is_video else decode_frames(read_bytes(path), color)
        first, second = next(frames, None), next(frames, None)
        if first is not None and second is None:
            yield ImageInput(name, place, None, first)
            return
        started = (frame for frame in (first, second) if frame is not None)
        for number, frame in enumerate(chain(started, frames)):
            if number % every == 0:
                yield ImageInput(name, place, number, frame)
    except OSError as error:
        why = DataError(error.strerror or str(error), code=ErrorCode.UNREADABLE)
        yield ImageInput(name, place, None, why)
    except DataError as error:
        if lacks_extra(error):
            raise
        why = DataError(error.message, code=error.code)
        yield ImageInput(name, place, number + 1 if number else None, why)


def _video_frames(path: Path) -> Iterator[np.ndarray]:
    """Yield the frames of a video, read by OpenCV."""
    with needs_extra(DataError, "reading videos", "OpenCV", "video"):
        import cv2
    capture = cv2.VideoCapture(str(regular_file(path).resolve()))
    try:
        good, frame = capture.read()
        if not good:
            message = "OpenCV cannot read a frame of this video"
            raise DataError(message, code=ErrorCode.UNREADABLE)
        while good:
            yield frame.transpose(2, 0, 1)
            good, frame = capture.read()
    finally:
        capture.release()


SHOWN_CLASSES = 5


def json_line(image: ImageInput, answer: Prediction | DataError, top: int | None) -> str:
    """Return a line of JSON: image, frame, and an error, or width, height and the prediction."""
    from demitasse.core.log import json_ready

    line: dict[str, object] = {"image": image.name, "frame": image.frame}
    if isinstance(answer, DataError):
        line["error"] = answer.message
    else:
        _, height, width = image.pixels().shape
        line |= {"width": width, "height": height, **answer.as_dict(top or _default_rows(answer))}
    return json.dumps(json_ready(line))


def text_lines(image: ImageInput, answer: Prediction, top: int | None) -> str:
    """Return an image's name, and its prediction below, in lines as wide as the terminal."""
    _, height, width = image.pixels().shape
    frame = "" if image.frame is None else f", frame {image.frame}"
    rows = _answer_rows(answer, top or _default_rows(answer))
    lines = [f"{image.name}{frame} ({width} x {height})", *rows]
    shown = [escaped(line, one_line=True) for line in lines]
    most = terminal_width() or sys.maxsize
    return "\n".join(line if len(line) <= most else f"{line[: most - 1]}…" for line in shown)


def _default_rows(answer: Prediction) -> int:
    from demitasse.inference.cards import Classes

    return SHOWN_CLASSES if isinstance(answer, Classes) else sys.maxsize


def _answer_rows(answer: Prediction, top: int) -> list[str]:
    from demitasse.inference.cards import Boxes, Classes, Features, Image, Segments

    match answer:
        case Classes():
            return [f"  {score:8.4f}  {label}" for label, score in answer.top(top)]
        case Boxes():
            boxes = answer.boxes[:top]
            width = max((len(box.label) for box in boxes), default=0)
            return [
                f"  {box.score:8.4f}  {box.label:{width}}  from {box.xmin:.0f}, {box.ymin:.0f} "
                f"to {box.xmax:.0f}, {box.ymax:.0f}"
                for box in boxes
            ] or ["  nothing found"]
        case Segments():
            size = answer.mask.size
            return [f"  {100 * n / size:7.2f}%  {label}" for _, label, n in answer.shares()[:top]]
        case Image():
            height, width = answer.pixels.shape[:2]
            return [f"  an image of {width} x {height} pixels, which --draw FOLDER writes"]
        case Features():
            return [
                f"  {name}  {'x'.join(map(str, array.shape)) or '1'}, mean {array.mean():.4g}, "
                f"from {array.min():.4g} to {array.max():.4g}"
                for name, array in answer.values.items()
            ]


class ImageWriter:
    """Writer of PNG files named like their images, in a folder that is created if missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[Path] = set()

    def draw(self, image: ImageInput, answer: Prediction) -> None:
        """Write an image with a prediction drawn on it."""
        from demitasse.inference.cards.predictions import draw_prediction

        self._write(image, draw_prediction(image.pixels(), answer))

    def mask(self, image: ImageInput, answer: Prediction) -> None:
        """Write the class of every pixel."""
        import numpy as np

        from demitasse.inference.cards import Segments

        if not isinstance(answer, Segments) or answer.mask.max(initial=0) > 255:
            message = (
                '--masks needs a card with task = "segment" and at most 256 classes, the '
                "limit of a PNG's pixel"
            )
            raise ConfigError(message, code=ErrorCode.INVALID, flag="--masks")
        self._write(image, answer.mask[None].astype(np.uint8))

    def _write(self, image: ImageInput, pixels: np.ndarray) -> None:
        from demitasse.core.atomic import write_bytes
        from demitasse.io.data.images.codecs import encode_image

        frame = "" if image.frame is None else f"-{image.frame:06d}"
        place = self._folder / image.place
        path, number = place.with_name(f"{place.stem}{frame}.png"), 2
        while path in self._written:  # files of two folders can share a name
            path = place.with_name(f"{place.stem}{frame}-{number}.png")
            number += 1
        self._written.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, encode_image(pixels, "png"))
