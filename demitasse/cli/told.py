"""What ``run`` prints and draws of an answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.cli.fitting import terminal_width
from demitasse.core.text import escaped
from demitasse.errors import ConfigError, DataError, ErrorCode

if TYPE_CHECKING:
    import numpy as np

    from demitasse.cli.pictures import Picture
    from demitasse.inference.cards import Answer

__all__ = ["Pictures", "as_json", "as_text"]

SHOWN_CLASSES = 5


def as_json(picture: Picture, answer: Answer | DataError, top: int | None) -> str:
    """Return one line of JSON: image, frame, and width, height and the answer, or an error."""
    from demitasse.core.log import json_ready

    line: dict[str, object] = {"image": picture.name, "frame": picture.frame}
    if isinstance(answer, DataError):
        line["error"] = answer.message
    else:
        _, height, width = picture.pixels().shape
        line |= {"width": width, "height": height, **answer.as_dict(top or _usual(answer))}
    return json.dumps(json_ready(line))


def as_text(picture: Picture, answer: Answer, top: int | None) -> str:
    """Return an image's name and below it what it shows, in lines as wide as the terminal."""
    _, height, width = picture.pixels().shape
    frame = "" if picture.frame is None else f", frame {picture.frame}"
    lines = [f"{picture.name}{frame} ({width} x {height})", *_rows(answer, top or _usual(answer))]
    shown = [escaped(line, one_line=True) for line in lines]
    most = terminal_width()
    if most is None:
        return "\n".join(shown)
    return "\n".join(line if len(line) <= most else f"{line[: most - 1]}…" for line in shown)


def _usual(answer: Answer) -> int:
    """Return how many rows are shown where nobody said."""
    from demitasse.inference.cards import Classes

    return SHOWN_CLASSES if isinstance(answer, Classes) else sys.maxsize


def _rows(answer: Answer, top: int) -> list[str]:
    from demitasse.inference.cards import Boxes, Classes, Features, Segments

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
        case Features():
            return [
                f"  {name}  {'x'.join(map(str, array.shape)) or '1'}, mean {array.mean():.4g}, "
                f"from {array.min():.4g} to {array.max():.4g}"
                for name, array in answer.values.items()
            ]


class Pictures:
    """Writes PNG files that are called like the images they are about.

    Args:
        folder: Where to; made where there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[Path] = set()

    def draw(self, picture: Picture, answer: Answer) -> None:
        """Write an image with an answer drawn on it.

        Raises:
            OSError: It cannot be written.
        """
        from demitasse.inference.cards.drawing import drawn

        self._write(picture, drawn(picture.pixels(), answer))

    def mask(self, picture: Picture, answer: Answer) -> None:
        """Write the class of every pixel.

        Raises:
            ConfigError: The answer is no map of classes, or has numbers above 255.
            OSError: It cannot be written.
        """
        import numpy as np

        from demitasse.inference.cards import Segments

        if not isinstance(answer, Segments) or answer.mask.max(initial=0) > 255:
            message = (
                '--masks is for cards with task = "segment" and at most 256 classes, which is what '
                "a pixel of a PNG holds"
            )
            raise ConfigError(message, code=ErrorCode.INVALID, flag="--masks")
        self._write(picture, answer.mask[None].astype(np.uint8))

    def _write(self, picture: Picture, pixels: np.ndarray) -> None:
        from demitasse.core.atomic import atomic_write
        from demitasse.io.data.images.encode import encode_image

        path = self._free(picture)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(encode_image(pixels, "png"))

    def _free(self, picture: Picture) -> Path:
        """Return a name that this run has not used yet: files of two folders can share theirs."""
        frame = "" if picture.frame is None else f"-{picture.frame:06d}"
        place = self._folder / picture.place
        path, number = place.with_name(f"{place.stem}{frame}.png"), 2
        while path in self._written:
            path = place.with_name(f"{place.stem}{frame}-{number}.png")
            number += 1
        self._written.add(path)
        return path
