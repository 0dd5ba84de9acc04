"""The nets of a solver: one to train, and any number to test with.

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
from demitasse.training.evaluation import Epoch

TRAIN_FIELDS = ("train_net_param", "train_net", "net_param", "net")

log = get_logger(__name__)


@dataclass(frozen=True)
class Source:
    """Source of a net: a field with a message or the name of a file."""

    field: str
    value: NetParameter | str

    def make(
        self, phase: str, own: NetState | None, base: Path | None, options: Mapping[str, Any]
    ) -> Net:
        """Make the net, in the merged state of phase, net and solver.

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
    """Return the state of a net of a solver; later arguments override earlier ones.

    Args:
        phase: "TRAIN" or "TEST".
        net: State in the net's file.
        own: State in the solver's fields.
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
    """Make the training net and the test nets, which share its weights.

    Args:
        param: The solver's fields; ``weights`` are loaded.
        base: Folder of the solver's file, which is searched for named files, too.
        options: Further arguments for all nets.
        seed: Key of all random numbers; None uses the configuration.
        keep: Blobs of the training net that are kept.
        on_mismatch: Action for layers of ``weights`` that do not fit.

    Raises:
        ConfigError: There is no training net, or more than one; the numbers of test nets,
            ``test_iter`` and ``test_state`` differ; ``test_interval`` is missing; or a net without
            a whole epoch has ``test_iter: 0``.
    """
    net = _make_train_net(param, base, {**options, "seed": seed, "keep_blobs": keep}, on_mismatch)
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
        got = " and ".join(given) or "none"
        message = f"got {got} of {', '.join(TRAIN_FIELDS)}, expected exactly one training net"
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
    """Make the test nets, in the order of ``test_iter``.

    The nets of ``test_net_param`` come first, then those of ``test_net``; every further
    ``test_iter`` is one more net made from ``net_param`` or ``net``.
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
    """Check the numbers of test nets, ``test_iter`` and ``test_state``.

    Raises:
        ConfigError: The numbers differ; names the field.
    """
    _checked_test_sources(param)


def _checked_test_sources(param: SolverParameter) -> list[Source]:
    sources = _test_sources(param)
    if param.test_state and len(param.test_state) != len(sources):
        message = (
            f"got {len(param.test_state)} test_state for {len(sources)} test nets, expected one "
            "for each or none"
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
        message = f"got test_interval {param.test_interval}, expected at least 1 with test nets"
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
                f"got test_iter {iterations} of test net {index}, expected a number of batches, or "
                "0 for every record once"
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
            f"got {counts} test_iter for {len(named)} test nets (test_net_param and test_net), "
            "expected one for each"
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
        lists: Names of files; each may contain several names, separated by commas.
        base: Folder that is searched, too.
        on_mismatch: "raise" an error for layers that do not fit, or "skip" them.
    """
    names = [part.strip() for one in lists for part in one.split(",") if part.strip()]
    paths = [resolve_path(name, base) for name in names]
    kept = load_files(net, paths, on_mismatch, log_load_report)
    if kept:
        log.info("No file has weights for %s, which keep their initial values", ", ".join(kept))


def log_load_report(report: LoadReport, path: str | os.PathLike[str]) -> None:
    """Log the layers of a weights file that were not loaded."""
    for layer in report.ignored:
        log.info("Ignoring source layer %s", layer)
    for layer in report.repeated:
        log.warning("Layer %s is in the file more than once; the last values are used", layer)
    for reason in report.mismatched.values():
        log.warning("Left out: %s", reason)
    log.info("Loaded %d layers from %s", len(report.loaded), os.fspath(path))
