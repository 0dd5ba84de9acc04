"""The nets of a solver: one to train, and any number to test with.

Source: Caffe, ``Solver::InitTrainNet`` and ``InitTestNets`` in ``src/caffe/solver.cpp``.
"""

import os
from collections.abc import Mapping, Sequence
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


Source = tuple[str, NetParameter | str]
"""A solver's field that gives a net, and its value: a message, or the name of a file."""


def make_nets(
    param: SolverParameter,
    base: Path | None,
    options: Mapping[str, Any],
    *,
    seed: int | None,
    keep: Keep,
    on_mismatch: OnMismatch,
) -> tuple[Net, list[Net]]:
    """Make the training net and the test nets, which share its weights; load ``weights``.

    Named files are also searched in ``base``, the folder of the solver's file. ``options`` are
    further arguments for all nets, ``keep`` names blobs of the training net. Fields that do not fit
    together raise a ConfigError.
    """
    given = [name for name in TRAIN_FIELDS if param.HasField(name)]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        message = f"got {got} of {', '.join(TRAIN_FIELDS)}, expected exactly one training net"
        code = ErrorCode.CONFLICT if given else ErrorCode.MISSING
        raise ConfigError(message, code=code, field="net", got=given)
    log.info("Creating training net from %s.", given[0])
    source = given[0], getattr(param, given[0])
    first = {**options, "seed": seed, "keep_blobs": keep}
    net = _make_net(source, "TRAIN", param.train_state, base, first)
    if not any(net.structure.blob_loss_weights) and not options["rank"]:
        log.warning("The training net has no loss, so weights get no gradients; add a loss layer")
    load_weights_list(net, param.weights, base, on_mismatch)
    options = {**options, "device": net.device, "seed": net.seed}
    tests = []
    for index, source in enumerate(check_test_nets(param)):
        log.info("Creating test net (#%d) specified by %s", index, source[0])
        own = param.test_state[index] if param.test_state else NetState()
        test = _make_net(source, "TEST", own, base, options)
        test.debug_info = param.debug_info
        load_weights_list(test, param.weights, base, on_mismatch)
        if param.test_iter[index] == 0:
            try:
                Epoch(test)
            except ConfigError as error:
                place = f"test_iter: 0 of test net {index}"
                raise error.at(place) from None
        tests.append(test)
    for test in tests:
        test.share_trained_layers_with(net)
    return net, tests


def _make_net(
    source: Source, phase: str, own: NetState, base: Path | None, options: Mapping[str, Any]
) -> Net:
    """Make a net in the merged state of phase, net and solver; errors name the solver's field."""
    field, value = source
    try:
        if isinstance(value, NetParameter):
            path, message = None, NetParameter()
            message.CopyFrom(value)
        else:
            path, ignore = resolve_path(value, base), options["ignore_unknown_fields"]
            message = read_text(path, NetParameter, ignore_unknown_fields=ignore)
        state = merged_state(phase, message.state, own)
        if state.phase == Phase.Value("TEST"):  # keeps all blobs, as it may be trained
            options = {**options, "keep_blobs": None}
        if path is None:
            message.state.CopyFrom(state)
            return Net(message, base_dir=base, **options)
        # The net appends the stages to those of the file.
        return Net(path, Phase.Name(state.phase), level=state.level, stages=own.stage, **options)
    except DemitasseError as error:
        error.at(f"solver's {field}")
        raise


def merged_state(phase: str, net: NetState, own: NetState) -> NetState:
    """Return the state of a net of a solver; the solver's fields override the net's file."""
    state = NetState(phase=Phase.Value(phase))
    state.MergeFrom(net)
    state.MergeFrom(own)
    return state


def check_test_nets(param: SolverParameter) -> list[Source]:
    """Return the sources of the test nets, in the order of ``test_iter``; check their numbers.

    The nets of ``test_net_param`` come first, then those of ``test_net``; every further
    ``test_iter`` is one more net made from ``net_param`` or ``net``.
    """

    def fault(code: ErrorCode, field: str, got: int, text: str, **details: Any) -> ConfigError:
        return ConfigError(f"got {got} {field} {text}", code=code, field=field, got=got, **details)

    sources: list[Source] = [("test_net_param", message) for message in param.test_net_param]
    sources += [("test_net", name) for name in param.test_net]
    generic = [(name, getattr(param, name)) for name in TRAIN_FIELDS[2:] if param.HasField(name)]
    count, named = len(param.test_iter), len(sources)
    if count < named or (count > named and not generic):
        text = f"for {named} test nets (test_net_param and test_net), expected one for each"
        raise fault(ErrorCode.COUNT_MISMATCH, "test_iter", count, text, expected=named)
    sources += generic * (count - named)
    states = len(param.test_state)
    if states and states != count:
        text = f"for {count} test nets, expected one for each or none"
        raise fault(ErrorCode.COUNT_MISMATCH, "test_state", states, text, expected=count)
    if sources and param.test_interval <= 0:
        text = "with test nets, expected at least 1"
        raise fault(ErrorCode.OUT_OF_RANGE, "test_interval", param.test_interval, text)
    for index, iterations in enumerate(param.test_iter):
        if iterations < 0:
            text = f"of test net {index}, expected a number of batches, or 0 for every record once"
            raise fault(ErrorCode.OUT_OF_RANGE, "test_iter", iterations, text, net=index)
    return sources


def load_weights_list(
    net: Net, lists: Sequence[str], base: Path | None = None, on_mismatch: OnMismatch = "raise"
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
