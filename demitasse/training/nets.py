"""The nets of a solver: one to train, any number to test with.

Source: Caffe, ``Solver::InitTrainNet`` and ``InitTestNets`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demitasse.core.log import get_logger
from demitasse.core.paths import resolve_path
from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.io.proto import NetParameter, NetState, Phase, SolverParameter, read_text
from demitasse.io.weights.load import LoadReport, OnMismatch, load_files
from demitasse.net import Net
from demitasse.plan.liveness import Keep
from demitasse.training.epoch import Epoch

__all__ = [
    "TRAIN_FIELDS",
    "check_test_counts",
    "load_weights_list",
    "make_nets",
    "merged_state",
    "tell_load",
]

TRAIN_FIELDS = ("train_net_param", "train_net", "net_param", "net")

log = get_logger(__name__)


@dataclass(frozen=True)
class Source:
    """Where a solver takes a net from: a field that holds a message or names a file."""

    field: str
    value: NetParameter | str

    def make(
        self, phase: str, own: NetState | None, base: Path | None, options: Mapping[str, Any]
    ) -> Net:
        """Make the net, in the state: phase < the net's own < what the solver adds.

        Raises:
            DemitasseError: The net cannot be made; names the solver's field.
        """
        own = own if own is not None else NetState()
        try:
            if isinstance(self.value, NetParameter):
                message = NetParameter()
                message.CopyFrom(self.value)
                message.state.CopyFrom(merged_state(phase, message.state, own))
                return Net(message, base_dir=base, **options)
            path = resolve_path(self.value, base)
            ignore = options.get("ignore_unknown_fields", False)
            file = read_text(path, NetParameter, ignore_unknown_fields=ignore)
            state = merged_state(phase, file.state, own)
            return Net(
                path,
                Phase.Name(state.phase),
                level=state.level,
                stages=own.stage,  # the net appends them to those of the file
                **options,
            )
        except DemitasseError as error:
            error.at(f"solver's {self.field}")
            raise


def merged_state(phase: str, net: NetState, own: NetState) -> NetState:
    """Return the state in which a solver makes a net.

    Args:
        phase: "TRAIN" or "TEST", where neither of the others says it.
        net: The net's own.
        own: What the solver adds.
    """
    state = NetState(phase=Phase.Value(phase))
    state.MergeFrom(net)
    state.MergeFrom(own)
    return state


def make_nets(
    param: SolverParameter,
    base: Path | None,
    options: Mapping[str, Any],
    *,
    seed: int | None = None,
    keep: Keep = None,
    on_mismatch: OnMismatch = "raise",
) -> tuple[Net, list[Net]]:
    """Make the net to train and those to test with, which hold its weights.

    Args:
        param: The solver's fields; ``weights`` are loaded.
        base: Folder of the solver's file, where named files are looked for too.
        options: Further arguments for all nets.
        seed: Key of all random numbers; None asks the configuration.
        keep: Which blobs of the net to train are kept.
        on_mismatch: What to do with layers of ``weights`` that do not fit.

    Raises:
        ConfigError: No net to train is given, or more than one. The numbers of test nets,
            ``test_iter`` and ``test_state`` do not fit, or ``test_interval`` is missing, or a net
            that is to be tested on a whole epoch has none.
    """
    net = _make_train_net(param, base, {**options, "seed": seed, "keep": keep}, on_mismatch)
    options = {**options, "device": net.device, "seed": net.seed}
    tests = _make_test_nets(param, base, options, on_mismatch)
    for test in tests:
        test.share_trained_layers_with(net)
    return net, tests


def _make_train_net(
    param: SolverParameter,
    base: Path | None,
    options: Mapping[str, Any],
    on_mismatch: OnMismatch,
) -> Net:
    given = [name for name in TRAIN_FIELDS if param.HasField(name)]
    if len(given) != 1:
        what = "no net to train" if not given else f"{' and '.join(given)} both"
        message = f"the solver has {what}; it needs exactly one of {', '.join(TRAIN_FIELDS)}"
        raise ConfigError(
            message, code=ErrorCode.CONFLICT if given else ErrorCode.MISSING, field="net", got=given
        )
    log.info("Creating training net from %s.", given[0])
    source = Source(given[0], getattr(param, given[0]))
    net = source.make("TRAIN", param.train_state, base, options)
    load_weights_list(net, param.weights, base, on_mismatch)
    return net


def _make_test_nets(
    param: SolverParameter,
    base: Path | None,
    options: Mapping[str, Any],
    on_mismatch: OnMismatch,
) -> list[Net]:
    """Make the nets to test with, in the order of ``test_iter``.

    Those of ``test_net_param`` come first, then those of ``test_net``; every further ``test_iter``
    is one more net made from ``net_param`` or ``net``.
    """
    sources = _checked_test_sources(param)
    nets = []
    for index, source in enumerate(sources):
        log.info("Creating test net (#%d) specified by %s", index, source.field)
        own = param.test_state[index] if param.test_state else None
        net = source.make("TEST", own, base, options)
        net.debug_info = param.debug_info
        load_weights_list(net, param.weights, base, on_mismatch)
        if param.test_iter[index] == 0:
            _check_epoch(net, index)
        nets.append(net)
    return nets


def check_test_counts(param: SolverParameter) -> None:
    """Refuse numbers of test nets, ``test_iter`` and ``test_state`` that do not fit together.

    Raises:
        ConfigError: Says which.
    """
    _checked_test_sources(param)


def _checked_test_sources(param: SolverParameter) -> list[Source]:
    sources = _test_sources(param)
    if param.test_state and len(param.test_state) != len(sources):
        message = (
            f"test_state is given {len(param.test_state)} times for {len(sources)} test nets; "
            "give it for every one or not at all"
        )
        raise ConfigError(
            message,
            fields=("test_state",),
            code=ErrorCode.COUNT_MISMATCH,
            field="test_state",
            got=len(param.test_state),
            expected=len(sources),
        )
    if sources and param.test_interval <= 0:
        message = "there are test nets, so test_interval must be above 0"
        raise ConfigError(
            message,
            fields=("test_interval",),
            code=ErrorCode.OUT_OF_RANGE,
            field="test_interval",
            got=param.test_interval,
        )
    for index, iterations in enumerate(param.test_iter):
        if iterations < 0:
            message = (
                f"test_iter of test net {index} is {iterations}; give the number of batches to "
                "test with, or 0 to test with every record once"
            )
            raise ConfigError(
                message,
                fields=("test_iter",),
                code=ErrorCode.OUT_OF_RANGE,
                field="test_iter",
                net=index,
                got=iterations,
            )
    return sources


def _check_epoch(net: Net, index: int) -> None:
    try:
        Epoch(net)
    except ConfigError as error:
        place = f"test_iter: 0 of test net {index}"
        raise error.at(place) from None


def _test_sources(param: SolverParameter) -> list[Source]:
    named = [Source("test_net_param", message) for message in param.test_net_param]
    named += [Source("test_net", name) for name in param.test_net]
    generic = [Source(f, getattr(param, f)) for f in ("net_param", "net") if param.HasField(f)]
    counts = len(param.test_iter)
    if counts < len(named) or (counts > len(named) and not generic):
        message = (
            f"test_iter is given {counts} times for {len(named)} test nets (test_net_param and "
            "test_net); give it once for each"
        )
        raise ConfigError(
            message,
            fields=("test_iter",),
            code=ErrorCode.COUNT_MISMATCH,
            field="test_iter",
            got=counts,
            expected=len(named),
        )
    return named + generic * (counts - len(named))


def load_weights_list(
    net: Net,
    lists: Sequence[str],
    base: Path | None = None,
    on_mismatch: OnMismatch = "raise",
) -> None:
    """Load parameters from files into a net, one after the other.

    Args:
        net: The net.
        lists: Names of files; each may be several with commas between them.
        base: Folder where they are looked for too.
        on_mismatch: "raise" an error for layers that do not fit, or "skip" them.
    """
    names = [part.strip() for one in lists for part in one.split(",") if part.strip()]
    paths = [resolve_path(name, base) for name in names]
    kept = load_files(net, paths, on_mismatch, tell_load)
    if kept:
        log.info("No file has weights for %s, which begin with their fillers'", ", ".join(kept))


def tell_load(report: LoadReport, path: str | os.PathLike[str]) -> None:
    """Log what of a weights file was left out."""
    for layer in report.ignored:
        log.info("Ignoring source layer %s", layer)
    for layer in report.repeated:
        log.warning("Layer %s is in the file more than once; the last one's values count", layer)
    for reason in report.mismatched.values():
        log.warning("Left out: %s", reason)
    log.info("Loaded %d layers from %s", len(report.loaded), os.fspath(path))
