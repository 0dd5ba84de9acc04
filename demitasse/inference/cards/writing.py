"""Cards as text, for a folder that others can use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from demitasse.errors import ConfigError
from demitasse.inference.cards.card import Card

__all__ = ["card_text"]


def card_text(card: Card, folder: Path, labels: Path | None = None) -> str:
    """Return a card as it is written in a folder.

    Args:
        card: What it says.
        folder: The folder, in which or below which its files are.
        labels: The file that its labels are in; None writes them into the card.

    Raises:
        ConfigError: A file lies elsewhere.
    """
    how, detect = card.preprocess, card.detect
    mean = _file(how.mean, folder) if isinstance(how.mean, Path) else _short(how.mean)
    tables: dict[str, dict[str, object]] = {
        "model": {
            "name": card.name,
            "net": "" if card.net is None else _file(card.net, folder),
            "weights": _one_or_all([_file(path, folder) for path in card.weights]),
            "task": card.task,
            "input": card.input,
            "output": _one_or_all(card.outputs),
            "labels": _file(labels, folder) if labels else list(card.labels),
            "batch": card.batch,
            "source": card.source,
            "licence": card.licence,
        },
        "preprocess": {
            "channels": how.channels,
            "size": list(how.size) if how.resize == "warp" else _one_or_all(how.size),
            "resize": "" if how.resize == "warp" else how.resize,
            "crop": list(how.crop),
            "mean": mean,
            "scale": "" if how.scale == (1.0,) else _short(how.scale),
        },
        "classify": {"softmax": card.softmax},
    }
    if card.task == "detect":
        tables["detect"] = {"threshold": detect.threshold}
        if detect.anchors is not None:
            tables["detect"] |= {
                "overlap": detect.overlap,
                "background": detect.background,
                "boxes": detect.boxes,
                "scores": detect.scores,
            }
            tables["detect.anchors"] = {
                "sizes": [list(row) for row in detect.anchors.sizes],
                "steps": list(detect.anchors.steps),
                "variance": list(detect.anchors.variance),
            }
    parts = ["format = 1\n"]
    for name, values in tables.items():
        lines = [f"{key} = {_toml(value)}" for key, value in values.items() if _said(value)]
        if lines:
            parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(parts)


def _said(value: object) -> bool:
    """Whether a value says more than leaving it out does."""
    return isinstance(value, float) or bool(value)


def _file(path: Path, folder: Path) -> str:
    """Return how a card in a folder names a file."""
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        message = (
            f"{path} lies outside of the card's folder, {folder}; a card names files beside it. "
            "Put them in one folder, or write the card to one above all of them with --out"
        )
        raise ConfigError(message) from None


def _one_or_all(values: Sequence[object]) -> object:
    return values[0] if len(values) == 1 else list(values)


def _short(values: Sequence[float]) -> object:
    """Return one number, or all of them."""
    return _one_or_all(values)


def _toml(value: object) -> str:
    """Return a value as TOML has it, whose texts, numbers and lists are JSON's but for one sign."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
