"""Images for examples without a download: scikit-learn's digits, and drawn shapes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.core.extras import missing_extra
from demitasse.errors import ConfigError
from demitasse.io.data.databases.writing import write_database

SHAPES = ("disc", "square", "triangle", "ring", "cross")
"""Shapes by label."""

COLOURS = np.array([[220, 60, 50], [60, 90, 220]], dtype=np.uint8)
"""Red and blue, as RGB: two classes of every shape."""


@dataclass(frozen=True)
class Split:
    """Images with labels, for training and test.

    Shapes: images (N, C, H, W), uint8; labels (N,).
    """

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def digits(size: int = 28, test: int = 297) -> Split:
    """Return the 1,797 handwritten digits of scikit-learn, in a stratified split.

    The height and width are a multiple of 8, padded with zeros; gray values are 0 to 255.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise missing_extra(ConfigError, "this example", "scikit-learn", "examples") from error
    grey, labels = load_digits(return_X_y=True)
    images = np.minimum(grey.reshape(-1, 1, 8, 8) * 16, 255).astype(np.uint8)
    times, rest = divmod(size, 8)
    images = images.repeat(times, axis=2).repeat(times, axis=3)
    margins = (rest // 2, (rest + 1) // 2)
    images = np.pad(images, ((0, 0), (0, 0), margins, margins))
    x, x_test, y, y_test = train_test_split(
        images, labels, test_size=test, stratify=labels, random_state=0
    )
    return Split((x, y), (x_test, y_test))


def write_databases(folder: Path, split: Split, names: tuple[str, str]) -> None:
    """Write both parts as LMDBs; keep existing databases."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in zip(names, (split.train, split.test), strict=True):
        if not (folder / name).exists():
            write_database(folder / name, zip(images, labels.tolist(), strict=True))


def draw_shapes(count: int, size: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw one shape on each image, over noise: ten classes, five shapes in two colours.

    Shapes: images (count, 3, size, size), BGR, uint8; labels (count,): twice the shape's index,
    plus 1 for blue.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2 * len(SHAPES), count)
    images = np.empty((count, 3, size, size), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        radius = rng.uniform(0.2, 0.42) * size
        centre = rng.uniform(radius, size - radius, 2)
        _background(image, rng)
        _paint(image, _mask(SHAPES[label // 2], size, centre, radius), int(label % 2), rng)
    return images, labels


@dataclass(frozen=True)
class Scene:
    """An image of several shapes.

    Attributes:
        image: (3, size, size), BGR, uint8.
        boxes: Class from 1 on, left, top, right and bottom of each shape, in pixels.
        classes: (size, size), uint8: class of each pixel, 0 for the background.
    """

    image: np.ndarray
    boxes: list[tuple[int, float, float, float, float]]
    classes: np.ndarray


def scenes(count: int, size: int, *, shapes: int = 2, most: int = 2, seed: int = 0) -> list[Scene]:
    """Draw square images of one to ``most`` shapes, of classes from 1 on, that do not overlap."""
    rng = np.random.default_rng(seed)
    return [_scene(size, shapes, most, rng) for _ in range(count)]


def _scene(size: int, shapes: int, most: int, rng: np.random.Generator) -> Scene:
    image = np.empty((3, size, size), dtype=np.uint8)
    classes = np.zeros((size, size), dtype=np.uint8)
    boxes: list[tuple[int, float, float, float, float]] = []
    _background(image, rng)
    for centre, radius in _discs(size, int(rng.integers(1, most + 1)), rng):
        kind = int(rng.integers(shapes))
        mask = _mask(SHAPES[kind], size, centre, radius)
        _paint(image, mask, int(rng.integers(2)), rng)
        classes[mask] = kind + 1
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        edges = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        left, top, right, bottom = map(float, edges)
        boxes.append((kind + 1, left, top, right, bottom))
    return Scene(image, boxes, classes)


def _discs(size: int, count: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, float]]:
    taken: list[tuple[np.ndarray, float]] = []
    for _ in range(20 * count):
        radius = float(rng.uniform(0.12, 0.25) * size)
        centre = rng.uniform(radius, size - radius, 2)
        if all(np.hypot(*(centre - other)) > radius + apart for other, apart in taken):
            taken.append((centre, radius))
            yield centre, radius
        if len(taken) == count:
            return


def _background(image: np.ndarray, rng: np.random.Generator) -> None:
    image[...] = rng.integers(60, 200, image.shape)


def _paint(image: np.ndarray, mask: np.ndarray, blue: int, rng: np.random.Generator) -> None:
    colour = COLOURS[blue][::-1].astype(int) + rng.integers(-30, 30, 3)
    image[:, mask] = np.clip(colour, 0, 255).astype(np.uint8)[:, None]


def _mask(kind: str, size: int, centre: np.ndarray, radius: float) -> np.ndarray:
    """Return the mask of a shape. Shape: (size, size)."""
    rows, columns = np.mgrid[:size, :size] + 0.5
    y, x = (rows - centre[0]) / radius, (columns - centre[1]) / radius
    masks: dict[str, np.ndarray] = {
        "disc": np.hypot(x, y) <= 1,
        "square": np.maximum(abs(x), abs(y)) <= 0.85,
        "triangle": (y <= 0.8) & (y >= 2 * abs(x) - 1),
        "ring": abs(np.hypot(x, y) - 0.75) <= 0.25,
        "cross": (np.minimum(abs(x), abs(y)) <= 0.25) & (np.maximum(abs(x), abs(y)) <= 0.95),
    }
    return masks[kind]
