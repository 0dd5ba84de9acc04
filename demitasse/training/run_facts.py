"""What a run is made of: written into its states, and compared when one is gone on from."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from demitasse.errors import DataError
from demitasse.io.proto import LayerParameter, RunFacts, SolverParameter
from demitasse.net import Net
from demitasse.training.run import Run
from demitasse.version import __version__

__all__ = ["file_digest", "run_facts"]

PART = 1 << 20
"""Bytes of a file that are read at a time."""

SOLVER_FIELDS = (
    "base_lr", "clip_gradients", "delta", "gamma", "iter_size", "lr_policy", "min_lr", "momentum",
    "momentum2", "plateau_metric", "plateau_winsize", "power", "rampup_interval", "rampup_lr",
    "regularization_type", "rms_decay", "stageiter", "stagelr", "stepsize", "stepvalue",
    "warmup_iter", "warmup_start_lr", "weight_decay",
)  # fmt: skip
"""Fields that updates depend on, whatever the policy is."""

NO_NUMBERS = ("source", "root_folder", "prefetch", "cache", "cache_images")
"""Fields of a data layer's message that say where records are, or how fast they come."""


def run_facts(run: Run) -> RunFacts:
    """Return what a run is made of, but for the digest of its weights."""
    train = run.net
    facts = RunFacts(type=run.updater.rule.type)
    for record, blob in zip(train.structure.learnable_records, train.learnable_params, strict=True):
        name = train.layer_names[record.layer]
        facts.parameter.add(layer=name, index=record.index, dim=blob.shape)
    tests = ((f"test {i}", net) for i, net in enumerate(run.test_nets))
    for name, net in (("train", train), *tests):
        facts.source.extend(_sources(name, net))
    for field in _fields(run.param):
        facts.solver.add(key=field, value=_shown(getattr(run.param, field)))
    for layer in train.layers:
        if layer.type != "Split":  # made here, and named after others
            facts.layer.add(key=layer.name, value=_digest(layer.param))
    for key, value in _machine(train, run.world_size).items():
        facts.machine.add(key=key, value=value)
    return facts


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file, of no more than its size says: some of the system never end.

    Raises:
        OSError: It cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (part := file.read(min(left, PART))):
            digest.update(part)
            left -= len(part)
    return digest.digest()


def _sources(name: str, net: Net) -> Iterable[RunFacts.Source]:
    for layer in net.layers:
        try:
            found = layer.fingerprint()
        except (DataError, OSError):  # gone while the run went on; the run tells that itself
            continue
        if found is not None:
            yield RunFacts.Source(
                net=name,
                layer=layer.name,
                path=str(found.path),
                records=found.records,
                digest=found.digest,
            )


def _fields(param: SolverParameter) -> Iterable[str]:
    yield from SOLVER_FIELDS
    if param.lr_policy == "poly":  # its rate falls to 0 there
        yield "max_iter"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, str | int):
        return str(value)
    return ", ".join(_shown(one) for one in value) if isinstance(value, Iterable) else str(value)


def _digest(param: LayerParameter) -> str:
    """Return a digest of what of a layer's fields numbers depend on."""
    own = LayerParameter()
    own.CopyFrom(param)
    for name in ("blobs", "include", "exclude", "bottom", "top"):
        own.ClearField(name)
    for field, value in own.ListFields():
        if field.name.endswith("data_param"):
            for name in NO_NUMBERS:
                if hasattr(value, name):
                    value.ClearField(name)
    return hashlib.sha256(own.SerializeToString(deterministic=True)).hexdigest()[:16]


def _machine(net: Net, ranks: int) -> dict[str, str]:
    return {
        "device": re.sub(r":\d+$", "", str(net.device)),  # GPUs of one kind are alike
        "dtype": net.dtype,
        "ranks": str(ranks),
        "demitasse": __version__,
        **net.device.backend.conditions(),
    }
