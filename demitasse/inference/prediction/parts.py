"""Parts of a prediction: each process writes its shard's parts, and one process joins them all.

A part is written atomically and records the fingerprint of its inputs, so that an existing part is
reused. Its content is independent of the number of shards and attempts.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.deprecated import renamed_arguments
from demitasse.core.log import json_ready
from demitasse.core.paths import check_exists, read_text, reason_of, regular_file
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError
from demitasse.inference.cards.model_files import LoadedModel, ModelFiles
from demitasse.inference.cards.published import file_hashes
from demitasse.inference.prediction.items import Arrays, Items, Records
from demitasse.io.weights.npz import arrays_in, write_npz
from demitasse.layers.checks import at_least
from demitasse.net import Net

Format = Literal["npz", "jsonl"]


class BatchRunner:
    """Runs a model, with or without a card, on batches of items.

    Args:
        files: The model's files.
        device: Device of the net; defaults to the configuration's.
        outputs: Names of the returned blobs; empty for those of the card or of the net.
    """

    def __init__(self, files: ModelFiles, device: str | None, outputs: Sequence[str] = ()) -> None:
        self._files, self._model = files, LoadedModel(files, device, outputs)
        self.net, self.outputs = self._model.net, self._model.outputs
        self._predictor = self._model.predictor

    def identity(self) -> list[str]:
        """Return texts that identify the model by the content of its files."""
        files = [self._files.net, *self._files.weights]
        card = self._files.card
        if card is not None and isinstance(card.preprocess.mean, Path):
            files.append(card.preprocess.mean)
            card = replace(card, preprocess=replace(card.preprocess, mean=()))
        digests = [file_hashes(path)[1] for path in files]
        text = "" if card is None else repr(replace(card, net=None, weights=()))
        return [*digests, text, *self.outputs, str(self.net.device)]

    def values(self, items: Items, batch: range) -> dict[str, np.ndarray]:
        """Return the outputs of a batch of items. Shapes: (len(batch), ...)."""
        inputs = items.rows(batch) if isinstance(items, Arrays) else self._stacked(items, batch)
        found = self._model.run(inputs)
        for name, array in found.items():
            if array.shape[:1] != (len(batch),):
                message = (
                    f"output {name!r} is {array.shape} for {len(batch)} items, expected one row "
                    "for each; name other outputs with --output, or use --format jsonl with a card"
                )
                raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, blob=name, got=array.shape)
        return found

    def lines(self, items: Items, batch: range) -> list[str]:
        """Return predictions for a batch of images, as lines of JSON."""
        if self._predictor is None or isinstance(items, Arrays):
            message = (
                "JSON lines are predictions for images by a model's card; without a card, or for "
                "arrays, use --format npz"
            )
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="format", got="jsonl")
        color = self._predictor.color
        lines = []
        results = self._predictor.stream(batch, lambda i: items.pixels(i, color), len(batch))
        for index, one in results:
            entry = {"error": one.message} if isinstance(one, DataError) else one.as_dict()
            lines.append(json.dumps(json_ready({"item": items.names[index], **entry})))
        return lines

    def bits(self, items: Items, batch: range, kind: Format) -> Sequence[str | bytes]:
        """Return the outputs of a batch, or its lines, to compare them bit for bit."""
        if kind == "jsonl":
            return self.lines(items, batch)
        return [array.tobytes() for array in self.values(items, batch).values()]

    def _stacked(self, items: Items, batch: range) -> dict[str, np.ndarray]:
        """Return images preprocessed by the card, or raw records; float32."""
        assert not isinstance(items, Arrays)
        if self._predictor is not None:
            prepare, name = self._predictor.prepare, self._predictor.input
            color = self._predictor.color
            rows = [prepare(items.pixels(index, color)).values for index in batch]
        elif isinstance(items, Records) and len(self.net.inputs) == 1:
            name = self.net.inputs[0]
            rows = [items.pixels(index, "native").astype(np.float32) for index in batch]
        else:
            message = (
                "the preprocessing of images for this net is unknown; write a card (demitasse "
                "card), or give arrays"
            )
            raise ConfigError(message, code=ErrorCode.MISSING, field="card")
        shapes = sorted({row.shape for row in rows})
        if len(shapes) > 1:
            message = (
                f"items {batch.start} to {batch.stop - 1} have shapes {shapes}; the shapes in a "
                "batch must be equal: use --batch 1"
            )
            raise DataError(message, code=ErrorCode.SHAPE_MISMATCH, got=shapes)
        return {name: np.stack(rows)}


MAX_SHARDS = 100_000

Candidate = tuple[int, int | None, str]
"""Index, number of shards, and source; the number is None if unknown."""

ITEMS, SOURCE = "items", "made_from"
"""Arrays of a part besides the outputs: names of the items, and the fingerprint."""

PART = re.compile(r"part-(\d{5,6})-of-(?!0+\.)(\d{5,6})\.(npz|jsonl)", re.ASCII)

MAX_LINE = 1000
"""Largest first line of a part, which contains the fingerprint, in bytes."""


@dataclass(frozen=True)
class Shard:
    """One of several shards of the batches.

    Attributes:
        index: Index of the shard, from 0.
        num_shards: Number of shards.
        where: Source of these numbers, for messages.
    """

    index: int = 0
    num_shards: int = 1
    where: str = "--shard"

    def __post_init__(self) -> None:
        """Check the index and the number of shards."""
        if not 0 <= self.index < self.num_shards <= MAX_SHARDS:
            message = (
                f"{self.where} gives shard {self.index} of {self.num_shards}; expected an index "
                f"from 0 to one less than the number, and a number from 1 to {MAX_SHARDS}"
            )
            got = (self.index, self.num_shards)
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="shard", got=got)

    def part_of(self, total: int) -> range:
        """Return this shard's range of ``total`` numbers; shards are contiguous and balanced."""
        begin, end = (at * total // self.num_shards for at in (self.index, self.index + 1))
        return range(begin, end)

    def __str__(self) -> str:
        return f"{self.index}/{self.num_shards}"


def find_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """Return the shard of this process.

    Args:
        text: "i/n", "auto", or "auto/n" if the environment gives i only.
        environment: Environment of the process, with variables of MPI, Slurm or Kubernetes.

    Raises:
        ConfigError: The text is invalid, or the environment names no shard or several.
    """
    match = re.fullmatch(r"(auto|\d{1,6})(?:/(\d{1,6}))?", text)
    if match is None or (match[1] != "auto" and match[2] is None):
        message = f'a shard is "i/n", "auto" or "auto/n", not {text!r}'
        raise ConfigError(message, code=ErrorCode.INVALID, field="shard", got=text)
    count = int(match[2]) if match[2] else None
    if match[1] != "auto":
        return Shard(int(match[1]), count or 0)
    found = list(_candidates(environment))
    several = [one for one in found if one[1] != 1] or found[:1]
    if len(several) > 1:
        names = " and ".join(where for _, _, where in several)
        message = f"{names} both give a shard; use --shard i/n"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="shard")
    if not several:
        message = (
            "the environment gives no shard: there are no variables of MPI, of a Slurm array or of "
            "an indexed Kubernetes job; use --shard i/n"
        )
        raise ConfigError(message, code=ErrorCode.MISSING, field="shard")
    index, size, where = several[0]
    if count is not None and size is not None and count != size:
        message = f"--shard gives {count} shards, {where} gives {size}"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="shard", got=(count, size))
    size = size or count
    if size is None:
        message = f"{where} does not give the number of shards; use --shard auto/n"
        raise ConfigError(message, code=ErrorCode.MISSING, field="shard")
    return Shard(index, size, where)


def _candidates(environment: Mapping[str, str]) -> Iterator[Candidate]:
    def number(name: str) -> int | None:
        text = environment.get(name, "").strip()
        if not text:
            return None
        if not text.isdecimal() or len(text) > 9:
            message = f"the variable {name} is {text[:50]!r}, expected a number"
            raise ConfigError(message, code=ErrorCode.INVALID, variable=name)
        return int(text)

    array = number("SLURM_ARRAY_TASK_ID")
    if array is not None:
        first, step = number("SLURM_ARRAY_TASK_MIN") or 0, number("SLURM_ARRAY_TASK_STEP") or 1
        count = number("SLURM_ARRAY_TASK_COUNT")
        yield (array - first) // step, count, "a Slurm array (SLURM_ARRAY_TASK_ID)"
    job = number("JOB_COMPLETION_INDEX")
    if job is not None:
        yield job, None, "a Kubernetes job (JOB_COMPLETION_INDEX)"
    for rank, size, name in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"),
        ("PMI_RANK", "PMI_SIZE", "MPI"),
        ("SLURM_PROCID", "SLURM_NTASKS", "srun"),
    ):
        index, count = number(rank), number(size)
        if index is not None and count is not None:
            yield index, count, f"{name} ({rank})"
            return


@renamed_arguments(maker="runner", batch="batch_size")
def fingerprint(runner: BatchRunner, items: Items, batch_size: int) -> str:
    """Return a hash of a prediction's inputs: model, items and batch size.

    Files of items are identified by name, size and modification time; those of the model by their
    content.
    """
    texts = [*runner.identity(), str(batch_size), *items.names, *map(_state, items.files)]
    return sha256(json.dumps(texts).encode()).hexdigest()


def part_path(folder: Path, shard: Shard, kind: str) -> Path:
    """Return the path of a part."""
    return folder / f"part-{shard.index:05}-of-{shard.num_shards:05}.{kind}"


@renamed_arguments(maker="runner", batch="batch_size")
def make_part(
    folder: Path, shard: Shard, runner: BatchRunner, items: Items, *, batch_size: int,
    kind: Format = "npz", force: bool = False, progress: Callable[[int, int], None] | None = None,
) -> tuple[Path, bool]:  # fmt: skip
    """Write a shard's part, unless it exists.

    Args:
        folder: Folder of the part; created if it is missing.
        shard: The shard.
        runner: The model.
        items: All items.
        batch_size: Number of items in a batch.
        kind: Arrays, or lines of JSON.
        force: Replace a part with another fingerprint.
        progress: Called after each batch with the batches done and their number.

    Returns:
        The part, and True if it was written now.

    Raises:
        ConfigError: A part with another fingerprint exists, or the shard's first batch depends on
            the state that the batch before it leaves in a layer.
    """
    at_least(1, "batch_size", batch_size)
    folder.mkdir(parents=True, exist_ok=True)
    path, source = part_path(folder, shard, kind), fingerprint(runner, items, batch_size)
    if path.exists() and not force:
        if _source_of(path) == source:
            return path, False
        message = (
            f"{path} exists, made from another model, other items or another batch size; use "
            "--force to replace it"
        )
        raise ConfigError(message, code=ErrorCode.EXISTS, file=str(path))
    total = len(items.names)
    batches = [
        range(start * batch_size, min(start * batch_size + batch_size, total))
        for start in shard.part_of(-(-total // batch_size))
    ]
    taken = {ITEMS, SOURCE}.intersection(runner.outputs) if kind == "npz" else None
    if taken:
        message = f"the output name {taken.pop()!r} is reserved for parts; omit the output"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="output")
    if shard.index and batches:
        _check_independent(shard, runner.net, lambda: runner.bits(items, batches[0], kind))
    lines, found = [json.dumps({SOURCE: source})], []
    for done, some in enumerate(batches, 1):
        if kind == "jsonl":
            lines += runner.lines(items, some)
        else:
            found.append(runner.values(items, some))
        if progress is not None:
            progress(done, len(batches))
    if kind == "jsonl":
        _write_lines(path, lines)
        return path, True
    names = [items.names[index] for some in batches for index in some]
    arrays = {name: np.concatenate([one[name] for one in found]) for name in next(iter(found), ())}
    write_npz(path, {**arrays, ITEMS: np.array(names, np.str_), SOURCE: np.array(source)})
    return path, True


def _check_independent(shard: Shard, net: Net, run: Callable[[], object]) -> None:
    """Check that a shard's first batch has the same outputs whatever state the layers are in."""
    layer = next((layer for layer in net.layers if layer.has_state), None)
    if layer is None:
        return
    if run() != run():
        message = (
            f"layer {layer.name!r} ({layer.type}) carries its state into the first batch of shard "
            f"{shard}, and another shard runs the batch before; use one shard, or batches whose "
            "sequences begin with cont 0"
        )
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="shard", got=str(shard))


def join_parts(folder: Path, out: Path) -> int:
    """Join the parts in a folder; return their number.

    Args:
        folder: The folder.
        out: The joined file, with the suffix of the parts: ``.npz`` or ``.jsonl``.

    Raises:
        DataError: Parts are missing, or do not belong together.
    """
    check_exists(folder)
    if not folder.is_dir():
        message = "expected a folder of parts"
        raise DataError(message, str(folder), code=ErrorCode.INVALID)
    paths = sorted(path for path in folder.iterdir() if PART.fullmatch(path.name))
    kinds = {(match[2], match[3]) for path in paths if (match := PART.fullmatch(path.name))}
    if len(kinds) != 1:
        found = ", ".join(f"of {int(count)} in {kind}" for count, kind in sorted(kinds)) or "none"
        message = f"expected the parts of one prediction, found parts: {found}"
        if kinds:
            message += "; give each prediction a folder of its own by -o"
        code = ErrorCode.CONFLICT if kinds else ErrorCode.NOT_FOUND
        raise DataError(message, str(folder), code=code)
    [(count, kind)] = kinds
    if out.suffix != f".{kind}":
        message = f"parts in {kind} are joined in a file with that suffix, not {out}"
        raise ConfigError(message, code=ErrorCode.INVALID, file=str(out), expected=f".{kind}")
    present = {path.name for path in paths}
    wanted = [part_path(folder, Shard(i, int(count)), kind) for i in range(int(count))]
    missing = [path.name for path in wanted if path.name not in present]
    if missing:
        message = f"{len(missing)} of {int(count)} parts are missing, the first is {missing[0]}"
        raise DataError(message, str(folder), code=ErrorCode.MISSING, file=missing[0])
    sources = {path: _source_of(path) for path in wanted}
    for path, source in sources.items():
        if not source:
            message = "not a part of a prediction, or damaged; write it again with --force"
            raise DataError(message, str(path), code=ErrorCode.CORRUPT)
    if len(set(sources.values())) > 1:
        message = "the parts were made from different models, items or batches"
        raise DataError(message, str(folder), code=ErrorCode.INCOMPATIBLE)
    if kind == "jsonl":
        _write_lines(out, [line for path in wanted for line in _lines(path)])
    else:
        loaded = {path: one for path in wanted if (one := _arrays(path))[ITEMS].size}
        first = next(iter(loaded.values()), {})
        for path, one in loaded.items():
            if _signature(one) != _signature(first):
                message = "names, types or shapes of the arrays differ from those of other parts"
                raise DataError(message, str(path), code=ErrorCode.INCOMPATIBLE)
        joined = {name: np.concatenate([one[name] for one in loaded.values()]) for name in first}
        write_npz(out, joined)
    return len(wanted)


def _state(path: Path) -> str:
    """Return a text that changes with the file."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:  # also for a zero byte in a list of names
        raise DataError(reason_of(error, path), str(path), code=ErrorCode.UNREADABLE) from error
    return f"{path} {state.st_size} {state.st_mtime_ns}"


def _source_of(path: Path) -> str:
    """Return the fingerprint of a part; empty for other files."""
    try:
        if path.suffix == ".jsonl":
            with regular_file(path).open("rb") as file:
                text = json.loads(file.readline(MAX_LINE))[SOURCE]
        else:
            text = arrays_in(path, [SOURCE], texts=True)[SOURCE].item()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return text if isinstance(text, str) else ""


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in read_text(path, "strict").split("\n")[1:] if line]
    except (OSError, ValueError) as error:
        raise DataError(str(error), str(path), code=ErrorCode.UNREADABLE) from None


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the outputs and the names of items, with equal numbers of rows."""
    try:
        arrays = arrays_in(path, texts=True)
    except (OSError, ValueError) as error:
        raise DataError(str(error), str(path), code=ErrorCode.UNREADABLE) from None
    del arrays[SOURCE]
    items = arrays.get(ITEMS)
    if items is None or items.ndim != 1 or items.dtype.kind != "U":
        message = f"the part has no array {ITEMS!r} with the names of its items"
        raise DataError(message, str(path), code=ErrorCode.CORRUPT)
    for name, array in arrays.items():
        if array.shape[:1] != items.shape:
            message = f"{name!r} is {array.shape}, for {len(items)} items"
            raise DataError(message, str(path), code=ErrorCode.CORRUPT, blob=name)
    return arrays


def _signature(arrays: Mapping[str, np.ndarray]) -> dict[str, object]:
    """Return types and row shapes of the arrays, which are equal in parts of one prediction."""
    return {name: (array.dtype, array.shape[1:]) for name, array in arrays.items() if name != ITEMS}


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    with atomic_write(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
