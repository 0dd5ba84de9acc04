"""Parts of a prediction in a folder: each whole or not at all, and put together in the end.

A part says what it was made from, so that one that is there already need not be made again. What is
in it does not depend on when and how often it was made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.paths import read_text, regular_file
from demitasse.errors import ConfigError, DataError
from demitasse.inference.prediction.items import Items
from demitasse.inference.prediction.making import Maker
from demitasse.inference.prediction.shards import Shard
from demitasse.io.weights.npz import arrays_in, write_npz

__all__ = ["Format", "join_parts", "made_from", "make_part", "part_path"]

Format = Literal["npz", "jsonl"]

ITEMS, SOURCE = "items", "made_from"
"""Arrays of a part beside the outputs: names of the items, and a digest."""

PART = re.compile(r"part-(\d{5,6})-of-(?!0+\.)(\d{5,6})\.(npz|jsonl)", re.ASCII)

LONGEST_LINE = 1000
"""Bytes of the first line of a part, which says what it was made from."""


def made_from(maker: Maker, items: Items, batch: int) -> str:
    """Return a digest of what a prediction is made from: model, items and batches.

    Files of items count by name, size and the time of their last change; those of the model by what
    is in them.
    """
    texts = [*maker.described(), str(batch), *items.names, *map(_state, items.files)]
    return sha256(json.dumps(texts).encode()).hexdigest()


def part_path(folder: Path, shard: Shard, kind: Format) -> Path:
    """Return the file of a part."""
    return folder / f"part-{shard.index:05}-of-{shard.count:05}.{kind}"


def make_part(
    folder: Path,
    shard: Shard,
    maker: Maker,
    items: Items,
    *,
    batch: int,
    kind: Format = "npz",
    force: bool = False,
) -> tuple[Path, bool]:
    """Make a shard's part, unless it is there.

    Args:
        folder: Where it is put; made if it is not there.
        shard: Which share of the batches it has.
        maker: The model.
        items: All items.
        batch: How many items run at once.
        kind: Arrays, or lines of JSON.
        force: Whether a part that was made from something else is replaced.

    Returns:
        The part, and whether it was made now.

    Raises:
        ConfigError: There is a part that was made from something else.
    """
    if batch < 1:
        message = f"batch must be at least 1, it is {batch}"
        raise ConfigError(message)
    folder.mkdir(parents=True, exist_ok=True)
    path, source = part_path(folder, shard, kind), made_from(maker, items, batch)
    if path.exists() and not force:
        if _source_of(path) == source:
            return path, False
        message = (
            f"{path} is there, made from another model, other items or another batch; --force "
            "makes it anew"
        )
        raise ConfigError(message)
    total = len(items.names)
    batches = [
        range(number * batch, min(number * batch + batch, total))
        for number in shard.part_of(-(-total // batch))
    ]
    if kind == "jsonl":
        lines = [line for some in batches for line in maker.lines(items, some)]
        _write_lines(path, [json.dumps({SOURCE: source}), *lines])
        return path, True
    taken = {ITEMS, SOURCE}.intersection(maker.outputs)
    if taken:
        message = f"an output is called {taken.pop()!r}, as an array of a part is; leave it out"
        raise ConfigError(message)
    found = [maker.values(items, some) for some in batches]
    names = [items.names[index] for some in batches for index in some]
    arrays = (
        {name: np.concatenate([one[name] for one in found]) for name in found[0]} if found else {}
    )
    write_npz(path, {**arrays, ITEMS: np.array(names, np.str_), SOURCE: np.array(source)})
    return path, True


def join_parts(folder: Path, out: Path) -> int:
    """Put the parts of a folder together; return how many there were.

    Args:
        folder: The folder.
        out: The file, ``.npz`` or ``.jsonl`` as the parts are.

    Raises:
        DataError: Parts are missing, or do not belong together.
    """
    paths = sorted(path for path in folder.iterdir() if PART.fullmatch(path.name))
    kinds = {(match[2], match[3]) for path in paths if (match := PART.fullmatch(path.name))}
    if len(kinds) != 1:
        found = ", ".join(f"of {int(count)} in {kind}" for count, kind in sorted(kinds)) or "none"
        message = f"there must be the parts of one prediction; there are parts: {found}"
        raise DataError(message, str(folder))
    [(count, kind)] = kinds
    if out.suffix != f".{kind}":
        message = f"parts in {kind} are put together in a file of that ending, not {out}"
        raise ConfigError(message)
    there = {path.name for path in paths}
    wanted = [part_path(folder, Shard(i, int(count)), _kind(kind)) for i in range(int(count))]
    missing = [path.name for path in wanted if path.name not in there]
    if missing:
        message = f"{len(missing)} of {int(count)} parts are missing, the first is {missing[0]}"
        raise DataError(message, str(folder))
    sources = {path: _source_of(path) for path in wanted}
    for path, source in sources.items():
        if not source:
            message = (
                "this is no part of a prediction, or it is damaged; make it again with --force"
            )
            raise DataError(message, str(path))
    if len(set(sources.values())) > 1:
        message = "the parts were made from different models, items or batches"
        raise DataError(message, str(folder))
    if kind == "jsonl":
        _write_lines(out, [line for path in wanted for line in _lines(path)])
    else:
        loaded = {path: one for path in wanted if (one := _arrays(path))[ITEMS].size}
        first = next(iter(loaded.values()), {})
        for path, one in loaded.items():
            if _form(one) != _form(first):
                message = "its arrays are not called, typed or shaped as those of other parts"
                raise DataError(message, str(path))
        write_npz(
            out, {name: np.concatenate([one[name] for one in loaded.values()]) for name in first}
        )
    return len(wanted)


def _state(path: Path) -> str:
    """Return what changes when a file does."""
    try:
        state = path.stat()
    except OSError as error:
        raise DataError(error.strerror or str(error), str(path)) from error
    return f"{path} {state.st_size} {state.st_mtime_ns}"


def _kind(text: str) -> Format:
    return "jsonl" if text == "jsonl" else "npz"


def _source_of(path: Path) -> str:
    """Return what a part was made from; empty for what is no part."""
    try:
        if path.suffix == ".jsonl":
            with regular_file(path).open("rb") as file:
                said = json.loads(file.readline(LONGEST_LINE))[SOURCE]
        else:
            said = arrays_in(path, [SOURCE], texts=True)[SOURCE].item()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""


def _lines(path: Path) -> list[str]:
    """Return the lines behind the first one.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        return [line for line in read_text(path, "strict").split("\n")[1:] if line]
    except (OSError, ValueError) as error:
        raise DataError(str(error), str(path)) from None


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the outputs and the names of items, which have as many rows.

    Raises:
        DataError: The file cannot be read, or is otherwise.
    """
    try:
        arrays = arrays_in(path, texts=True)
    except (OSError, ValueError) as error:
        raise DataError(str(error), str(path)) from None
    del arrays[SOURCE]
    items = arrays.get(ITEMS)
    if items is None or items.ndim != 1 or items.dtype.kind != "U":
        message = f"this part has no array {ITEMS!r} with the names of its items"
        raise DataError(message, str(path))
    for name, array in arrays.items():
        if array.shape[:1] != items.shape:
            message = f"{name!r} is {array.shape}, for {len(items)} items"
            raise DataError(message, str(path))
    return arrays


def _form(arrays: Mapping[str, np.ndarray]) -> dict[str, object]:
    """Return what is equal for parts that can be put together."""
    return {name: (array.dtype, array.shape[1:]) for name, array in arrays.items() if name != ITEMS}


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    with atomic_write(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
