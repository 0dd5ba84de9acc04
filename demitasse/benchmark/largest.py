"""The largest batch that a device's memory suffices for: computed, then tried.

What a net takes grows along a line with the batch, which two small ones tell. What layers need on
the way, and a library's choices for large batches, are not known from that; so sizes around the
computed one are run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from demitasse.benchmark.case import with_batch
from demitasse.benchmark.trial import Answer, Trial
from demitasse.core.deprecated import renamed_arguments
from demitasse.core.device import Device, choose_device
from demitasse.core.text import bytes_text, read_size
from demitasse.errors import ConfigError, ErrorCode, NetError, OutOfMemoryError
from demitasse.io.proto import NetParameter, SolverParameter, read_solver_params
from demitasse.net.memory_usage import MemoryUse
from demitasse.plan.liveness import Keep
from demitasse.training.updates import RULES

__all__ = ["LargestBatch", "largest_batch"]

SMALL = (8, 16)
"""The batch sizes that the line is drawn through; a layer's columns are chosen for some images."""

MARGIN = 0.9
"""The part of the free memory that is used where no limit is given."""

MAX_BATCH = 65536
"""The largest batch that is looked for."""

PRECISION = 32
"""The answer may be too small by this part of it."""

FARTHER = 4
"""How many times the last batch that fitted may be tried next."""

MOST_TRIALS = 16
"""How many batches are tried; that few suffice unless memory grows by leaps."""


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch of a net that a device's memory suffices for.

    Attributes:
        batch: The batch size.
        computed: What it would be by computation alone.
        confirmed: Whether ``batch`` was run, and a larger one refused or not looked for.
        refused: The smallest batch size that was run and did not fit; None for none.
        why: What did not fit there.
        use: What the net takes at ``batch``, by part, in bytes.
        per_item: What one item more takes, in bytes.
        limit: What the net may take, in bytes.
        device: Where.
        phase: "TRAIN" or "TEST".
        solver: Type of the solver; empty for none.
    """

    batch: int
    computed: int
    confirmed: bool
    refused: int | None
    why: str
    use: MemoryUse
    per_item: int
    limit: int
    device: str
    phase: str
    solver: str


@renamed_arguments(at_most="max_batch", tell="on_trial")
def largest_batch(
    net: str | os.PathLike[str],
    *,
    device: str | Device | None = None,
    phase: str = "TRAIN",
    limit: int | str | None = None,
    keep: Keep = "outputs",
    solver: str | os.PathLike[str] | None = None,
    confirm: bool = True,
    max_batch: int = MAX_BATCH,
    on_trial: Callable[[int], object] = lambda batch: None,
) -> LargestBatch:
    """Find the largest batch that fits, to a thirty-second.

    The net runs in processes of its own, on inputs like those of ``demitasse bench``: layers that
    read data are replaced. On devices that work in the host's memory they are kept within the limit
    by the system, on Linux, and never get more than is free; on other systems nothing but small
    batches is run there.

    Args:
        net: The net's prototxt.
        device: Where; None asks the configuration.
        phase: "TRAIN" runs forward and backward, "TEST" forward alone.
        limit: What the net may take, as bytes or ``"8GiB"``; None: nine tenths of what is free.
        keep: Blobs to keep besides inputs and outputs, as for ``Net``; None keeps all.
        solver: Type of a solver, as "SGD", or the prototxt of one: parameters are updated, too.
        confirm: Whether the computed batch is run, and others around it.
        max_batch: The largest batch that is looked for.
        on_trial: Called with each batch size before its trial.

    Raises:
        ConfigError: The solver or the limit is none.
        NetError: The net has no inputs, or their batch size cannot change.
        OutOfMemoryError: Not even one item fits.
    """
    where = choose_device(device)[0]
    path, phase = Path(net), phase.upper()
    trial = Trial(
        net=with_batch(path, phase, 1),
        grows=_growing(path, phase),
        phase=phase,
        device=where.name,
        keep=keep if keep is None or isinstance(keep, str) else tuple(keep),
        solver=_solver_type(solver),
        base_dir=str(path.parent.absolute()),
    )
    if trial.solver and phase != "TRAIN":
        message = f"a solver trains a net, so the phase is TRAIN, not {phase}"
        raise ConfigError(
            message, code=ErrorCode.CONFLICT, field="phase", got=phase, expected="TRAIN"
        )
    search = _Search(trial, *_limits(where, limit), max_batch, on_trial)
    line = search.line()
    computed = max(0, min(max_batch, line.batch_within(search.limit)))
    if confirm and search.may_try(line.at(computed)):
        search.around(computed)
    if search.confirmed:
        if search.fits is None:
            message = f"not even a batch of 1 fits in {bytes_text(search.limit)}: {search.why}"
            raise OutOfMemoryError(message)
        batch, use = search.fits.batch, search.fits.use or MemoryUse()
    else:
        if not computed:
            message = (
                f"by computation not even a batch of 1 fits in {bytes_text(search.limit)}: it "
                f"takes {bytes_text(line.at(1).total)}"
            )
            raise OutOfMemoryError(message)
        batch, use = computed, line.at(computed)
    return LargestBatch(
        batch=batch,
        computed=computed,
        confirmed=search.confirmed,
        refused=search.refused,
        why=search.why,
        use=use,
        per_item=line.per_item,
        limit=search.limit,
        device=where.name,
        phase=phase,
        solver=trial.solver,
    )


@dataclass(frozen=True)
class _Line:
    """What a net takes, part by part, as it was found at two batch sizes."""

    sizes: tuple[int, int]
    few: MemoryUse
    many: MemoryUse

    @property
    def per_item(self) -> int:
        """What one item more takes."""
        return max(0, self.many.total - self.few.total) // (self.sizes[1] - self.sizes[0])

    def at(self, batch: int) -> MemoryUse:
        """Return what a batch takes."""
        steps = self.sizes[1] - self.sizes[0]
        few, many = asdict(self.few), asdict(self.many)
        return MemoryUse(
            **{
                name: max(
                    0, few[name] + (many[name] - few[name]) * (batch - self.sizes[0]) // steps
                )
                for name in few
            }
        )

    def batch_within(self, limit: int) -> int:
        """Return the largest batch that takes no more than a limit."""
        room = limit - self.few.total
        return self.sizes[0] + room // self.per_item if self.per_item else MAX_BATCH


class _Search:
    """Tries batch sizes.

    Args:
        trial: What is tried.
        limit: What the net may take.
        free: What may be tried at most without harm to what else the machine does; None where
            that is not known, nor a process kept within it.
        max_batch: The largest batch that is looked for.
        on_trial: Called with each batch size before its trial.

    Attributes:
        fits: The largest batch that was run; None before.
        refused: The smallest batch size that did not fit; None before.
        why: What did not fit there.
        confirmed: Whether the search came to its end.
    """

    def __init__(
        self,
        trial: Trial,
        limit: int,
        free: int | None,
        max_batch: int,
        tell: Callable[[int], object],
    ) -> None:
        self.trial, self.limit, self.max_batch = trial, limit, max_batch
        self._free, self._tell = free, tell
        self._known: list[Answer] = []
        self.fits: Answer | None = None
        self.refused: int | None = None
        self.why = ""
        self.confirmed = False

    def line(self) -> _Line:
        """Run two small batches, or smaller ones where these do not fit."""
        few, many = SMALL
        while True:
            answers = self._run(few, many)
            uses = [answer.use for answer in answers if answer.use is not None]
            if len(uses) == 2:
                self._known = answers
                return _Line((few, many), *uses)
            if few == 1:
                message = (
                    f"not even a batch of {many} fits in {bytes_text(self.limit)}: "
                    f"{answers[-1].lacks}"
                )
                raise OutOfMemoryError(message)
            few, many = few // 2, many // 2

    def may_try(self, use: MemoryUse) -> bool:
        """Whether so much may be taken without harm to what else the machine does."""
        return self._free is not None and use.total <= self._free

    def around(self, batch: int) -> None:
        """Find the largest batch that fits, beginning with one that should."""
        low, high = 0, self.max_batch + 1
        batch = max(1, min(batch, self.max_batch))
        back = PRECISION // 4
        for _ in range(MOST_TRIALS):
            [answer] = self._run(batch)
            if answer.use is not None:
                low, self.fits, back = batch, answer, PRECISION
                self._known = [self._known[-1], answer]
                batch = min(self._expected(), FARTHER * low)
            else:
                high, self.refused, self.why = batch, batch, answer.lacks
                batch, back = high - max(1, high // back), max(2, back // 2)
            if high - low <= max(1, high // PRECISION):
                break
            # by as much larger as shows something, or in the middle where that was refused
            batch = max(batch, low + max(1, low // PRECISION))
            batch = batch if batch < high else (low + high) // 2
        self.confirmed = True

    def _expected(self) -> int:
        """Return the batch whose peak is the limit, on the line of the last two that fitted."""
        before, last = self._known
        more, grown = last.batch - before.batch, last.peak - before.peak
        if more <= 0 or grown <= 0:
            return last.batch * FARTHER
        return last.batch + (self.limit - last.peak) * more // grown

    def _run(self, *batches: int) -> list[Answer]:
        self._tell(batches[-1])
        most = self.limit if self._free is None else min(self.limit, self._free)
        return self.trial.run(batches, most)


def _growing(path: Path, phase: str) -> tuple[str, ...]:
    """Return the inputs whose first axis is the batch."""
    one, two = (_shapes(with_batch(path, phase, batch)) for batch in (1, 2))
    grows = tuple(name for name, shape in two.items() if shape != one[name])
    if not grows:
        message = f"no input of {path} has an axis that grows with the batch"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    return grows


def _shapes(net: NetParameter) -> dict[str, list[int]]:
    inputs = (layer for layer in net.layer if layer.type == "Input")
    return {layer.top[0]: list(layer.input_param.shape[0].dim) for layer in inputs}


def _solver_type(solver: str | os.PathLike[str] | None) -> str:
    """Return the type of a solver that is named, or that a file describes."""
    if solver is None:
        return ""
    known = {name.lower(): name for name in RULES}
    name = os.fspath(solver)
    if name.lower() in known:
        return known[name.lower()]
    param: SolverParameter = read_solver_params(name)
    if param.type not in RULES:
        message = f"{name} is of type {param.type!r}; known are {', '.join(RULES)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="type", got=param.type)
    return param.type


def _limits(device: Device, limit: int | str | None) -> tuple[int, int | None]:
    """Return what the net may take, and what may be tried.

    Raises:
        ConfigError: The limit is none, or none is given and the system does not say what is free.
    """
    info = device.memory_info()
    free = None if info.free is None else int(MARGIN * info.free)
    if limit is not None:
        try:
            most = read_size(limit)
        except ValueError as error:
            message = f"limit: {error}"
            raise ConfigError(message, code=ErrorCode.INVALID, field="limit") from None
        return most, free
    if free is None:
        message = f"the system does not say what is free on {device}; give a limit, as limit='8GiB'"
        raise ConfigError(message, code=ErrorCode.UNAVAILABLE, field="limit")
    return free, free
