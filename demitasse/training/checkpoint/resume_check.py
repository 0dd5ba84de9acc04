"""Check that a run may resume from a state: the fingerprint of a run, and its differences."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from demitasse.core.axes import shape_string
from demitasse.core.hashing import sha256
from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, DataError, ErrorCode, SnapshotError
from demitasse.graph.wiring import FACTORS
from demitasse.io.proto import LayerParameter, RunFacts, SolverParameter
from demitasse.net import Net
from demitasse.training.checkpoint.state_file import State
from demitasse.training.context import TrainingContext
from demitasse.version import __version__

log = get_logger(__name__)

Fact = RunFacts.Fact

FLOAT = re.compile(r"-?\d+\.\d+(e-?\d+)?")
CHUNK = 1 << 20  # bytes of a file that are read at a time

SOLVER_FIELDS = (
    "base_lr", "clip_gradients", "delta", "gamma", "iter_size", "lr_policy", "min_lr", "momentum",
    "momentum2", "plateau_metric", "plateau_winsize", "power", "rampup_interval", "rampup_lr",
    "regularization_type", "rms_decay", "stageiter", "stagelr", "stepsize", "stepvalue",
    "trust_coefficient", "warmup_iter", "warmup_start_lr", "weight_decay",
)  # fmt: skip
"""Fields that updates depend on, with any policy."""

PROCESS_FIELDS = (
    *SOLVER_FIELDS, "average_loss", "display", "max_iter", "snapshot", "snapshot_after_train",
    "test_initialization", "test_interval", "test_iter", "type",
)  # fmt: skip
"""Fields that are equal in all processes that train together."""

DATA_LOCATION_FIELDS = ("source", "root_folder", "prefetch", "cache", "cache_images")
"""Fields of a data layer that affect where records are, or how fast they arrive, but no number."""


def run_fingerprint(run: TrainingContext) -> RunFacts:
    """Return the fingerprint of a run, without the digest of its weights."""
    train = run.net
    fingerprint = RunFacts(type=run.updater.rule.type)
    for record, blob in zip(train.structure.learnable_records, train.learnable_params, strict=True):
        name = train.layer_names[record.layer]
        fingerprint.parameter.add(layer=name, index=record.index, dim=blob.shape)
        for factor in FACTORS:  # may have been set since the net was made
            key = f"{factor} of parameter {record.index} of layer {name!r}"
            fingerprint.solver.add(key=key, value=_text(getattr(record, factor)))
    for name, net in run.named_nets():
        for layer in net.layers:
            try:
                source = layer.fingerprint()
            except (DataError, OSError):  # deleted during the run, whose next read reports this
                continue
            if source is not None:
                fingerprint.source.add(
                    net=name, layer=layer.name, path=str(source.path),
                    records=source.records, digest=source.digest,
                )  # fmt: skip
    for field in (*SOLVER_FIELDS, *_policy_fields(run.param)):
        fingerprint.solver.add(key=field, value=_text(getattr(run.param, field)))
    for layer in train.layers:
        if layer.type != "Split":  # inserted by the net, and named after other layers
            fingerprint.layer.add(key=layer.name, value=_layer_digest(layer.param))
    environment = {
        "device": re.sub(r":\d+$", "", str(train.device)),  # GPUs of one kind are alike
        "dtype": train.dtype,
        "storage": train.storage,
        "ranks": str(run.world_size),
        "demitasse": __version__,
        **train.device.backend.environment(),
    }
    for key, value in environment.items():
        fingerprint.machine.add(key=key, value=value)
    return fingerprint


def process_settings(param: SolverParameter, nets: Iterable[Net]) -> dict[str, str]:
    """Return the settings that are equal in all processes that train together, by name.

    The first of ``nets`` is the training net.
    """
    settings = {name: _text(getattr(param, name)) for name in PROCESS_FIELDS}
    for number, net in enumerate(nets):
        place = f"test net #{number - 1}" if number else "the training net"
        for layer in net.layers:
            name = f"layer {layer.name!r} of {place}"
            settings[name] = _layer_digest(layer.param)
            settings[f"parameter shapes of {name}"] = str([blob.shape for blob in layer.blobs])
    return settings


def _policy_fields(param: SolverParameter) -> tuple[str, ...]:
    """Return further fields that the learning rate of the policy depends on."""
    if param.lr_policy in {"poly", "cosine"}:
        return ("max_iter",)
    if param.lr_policy != "plateau":
        return ()
    return ("test_interval", "test_iter") if param.plateau_metric else ("average_loss",)


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file, up to its size: some files of the system never end."""
    digest = sha256()
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (part := file.read(min(left, CHUNK))):
            digest.update(part)
            left -= len(part)
    return digest.digest()


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, str | int):
        return str(value)
    return ", ".join(_text(item) for item in value) if isinstance(value, Iterable) else str(value)


def _layer_digest(param: LayerParameter) -> str:
    """Return a digest of the layer's fields that affect results."""
    own = LayerParameter()
    own.CopyFrom(param)
    for name in ("blobs", "include", "exclude", "bottom", "top"):
        own.ClearField(name)
    for field, value in own.ListFields():
        if field.name.endswith("data_param"):
            for name in DATA_LOCATION_FIELDS:
                if hasattr(value, name):
                    value.ClearField(name)
    return sha256(own.SerializeToString(deterministic=True)).hexdigest()[:16]


@dataclass(frozen=True)
class Difference:
    """Difference between a run and the state that it resumes from."""

    key: str  # the field, layer or part of the run
    text: str  # the old and the new value
    incompatible: bool = False  # the state belongs to another run
    changes_results: bool = True  # of an uninterrupted run


def check_compatible(
    state: State,
    now: RunFacts,
    seed: int,
    path: Path,
    lost: Sequence[Difference],
    *,
    force: bool,
    exact: bool,
) -> None:
    """Warn of differences between a run and a state, and refuse incompatible ones (SnapshotError).

    States of Caffe and of older versions have no fingerprint, and are accepted. ``now`` is the
    fingerprint of the run that resumes, ``seed`` the one that the caller asked for, negative for
    any; ``lost`` are layers whose state is not in the state. ``force`` refuses no differences,
    ``exact`` all that change results; both together raise a ConfigError.
    """
    if force and exact:
        message = "force accepts differences and exact refuses them; give one of the two"
        raise ConfigError(message, code=ErrorCode.CONFLICT)
    found = list(_all_differences(state, now, seed, exact))
    refused = [
        difference
        for difference in (*found, *lost)
        if (difference.incompatible and not force) or (exact and difference.changes_results)
    ]
    if refused:
        texts = "; ".join(difference.text for difference in refused)
        if any(difference.incompatible for difference in refused):
            message = (
                f"this is not a state of this run: {texts}. Give the files of one run, or resume "
                "anyway with --force (force=True)"
            )
        else:
            message = (
                f"the run cannot resume exactly from this state: {texts}. Without --exact "
                "(exact=True) the run resumes, with other results"
            )
        keys = [difference.key for difference in refused]
        error = SnapshotError(message, code=ErrorCode.INCOMPATIBLE, differences=keys)
        raise error.at(os.fspath(path))
    if found:
        log.warning(
            "The run that resumes from %s differs from the run that wrote it:\n%s",
            path, "\n".join(f"  {difference.text}" for difference in found),
        )  # fmt: skip
    for difference in lost:
        log.warning("Resuming from %s, %s: the layer starts anew.", path, difference.text)


def _all_differences(state: State, now: RunFacts, seed: int, exact: bool) -> Iterator[Difference]:
    resume = state.resume
    if resume is None or not resume.HasField("run"):
        if exact:
            yield Difference("fingerprint", "the state has no fingerprint of its run")
        return
    if state.learned_net:
        try:
            now.weights = file_digest(Path(state.learned_net))
        except OSError as error:
            message, file = f"its weights cannot be read: {error}", state.learned_net
            raise SnapshotError(message, code=ErrorCode.UNREADABLE, file=file) from error
    yield from differences(resume.run, now)
    if resume.HasField("seed") and seed >= 0 and seed % (1 << 64) != resume.seed:
        text = f"the seed was {resume.seed}, is {seed}: the run keeps {resume.seed}"
        yield Difference("seed", text, changes_results=False)


def differences(was: RunFacts, now: RunFacts) -> Iterator[Difference]:
    """Yield the differences of two runs; a value missing in one run counts as equal."""
    if was.weights and now.weights and was.weights != now.weights:
        text = "its weights file is not the file written with the state, or has changed since"
        yield Difference("weights", text, incompatible=True)
    if was.type != now.type:
        yield Difference("type", f"the solver was {was.type}, is {now.type}", incompatible=True)
    for old, new in zip_longest(was.parameter, now.parameter):
        if old != new:
            text = f"the parameters differ: {_parameter(old)} was learned, {_parameter(new)} is now"
            yield Difference("parameter", text, incompatible=True)
            break  # the parameters that follow are shifted
    yield from _source_differences(was, now)
    yield from _changed_values(was.solver, now.solver)
    before, after = _table(was.layer), _table(now.layer)
    changed = [name for name in before if name in after and before[name] != after[name]]
    groups = (
        ("layers have other fields", changed),
        ("layers were removed", [name for name in before if name not in after]),
        ("layers were added", [name for name in after if before and name not in before]),
    )
    for text, names in groups:
        if names:
            yield Difference("layers", f"{text}: {', '.join(names)}")
    yield from _changed_values(was.machine, now.machine)


def _parameter(parameter: RunFacts.Parameter | None) -> str:
    if parameter is None:
        return "nothing"
    shape = shape_string(tuple(parameter.dim))
    return f"parameter {parameter.index} of layer {parameter.layer!r} of shape {shape}"


def _source_differences(was: RunFacts, now: RunFacts) -> Iterator[Difference]:
    before = {(source.net, source.layer): source for source in was.source}
    for new in now.source:
        old = before.get((new.net, new.layer))
        if old is None:
            continue
        place = f"the data of layer {new.layer!r} of the {new.net} net"
        training = new.net == "train"
        if old.records and new.records and old.records != new.records:
            text = f"{place} had {old.records} records ({old.path}), has {new.records} ({new.path})"
            yield Difference(new.layer, text, changes_results=training)
        elif old.digest != new.digest:
            text = f"{place} differs from before: it was {old.path}, is {new.path}"
            yield Difference(new.layer, text, changes_results=training)
        elif old.path != new.path:
            text = f"{place} looks the same, but was {old.path}, is {new.path}"
            yield Difference(new.layer, text, changes_results=False)


def _changed_values(was: Iterable[Fact], now: Iterable[Fact]) -> Iterator[Difference]:
    before = _table(was)
    for key, value in _table(now).items():
        if before.get(key, value) != value:
            old, new = _shown(before[key]), _shown(value)
            yield Difference(key, f"{key} was {old or 'none'}, is {new or 'none'}")


def _shown(value: str) -> str:
    """Return floats as they were written, without the digits that float32 adds."""
    return ", ".join(str(np.float32(x)) if FLOAT.fullmatch(x) else x for x in value.split(", "))


def _table(facts: Iterable[Fact]) -> dict[str, str]:
    return {fact.key: fact.value for fact in facts}
