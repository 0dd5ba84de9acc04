"""Process-wide state of Caffe: mode, device, phase, seed, log; and the timer.

The log is written to standard error from the first net or solver on, unless the program has added a
handler to the logger ``demitasse``. ``GLOG_minloglevel`` and ``GLOG_logtostderr`` are supported,
with their values at ``import caffe`` if they were set then; log files are not written.

Source: Caffe, ``python/caffe/_caffe.cpp``, ``src/caffe/util/benchmark.cpp``; glog,
``src/logging.cc``.
"""

import logging
import os
import sys
import threading
from time import perf_counter

from demitasse.core import device
from demitasse.core.config import settings
from demitasse.core.device import current_device
from demitasse.core.log import GLOG_LEVELS, get_logger, start_logging, stop_propagation
from demitasse.layers import layer_types
from demitasse.layers.user_layer import Phase

TRAIN, TEST = Phase.TRAIN, Phase.TEST

_gpu = {"id": 0}
_phase: list[Phase] = []

_lock = threading.Lock()

_started_log: list[bool] = []

_glog: dict[str, str] = {}

_logger = get_logger(__name__)


def set_mode_cpu() -> None:
    """Run new nets on the CPU."""
    device.set_device("cpu")


def set_mode_gpu() -> None:
    """Run new nets on the GPU that ``set_device`` chose, by default the first one.

    On a machine without GPUs the setting ``gpu_fallback = "cpu"`` runs them on the CPU.

    Raises:
        DeviceError: The GPU is not present; the message lists the devices.
    """
    device.set_device(f"cuda:{_gpu['id']}")


def set_device(device_id: int) -> None:
    """Choose the GPU that ``set_mode_gpu`` uses, at once if the process is in GPU mode."""
    _gpu["id"] = int(device_id)
    if device.current_device().kind == "cuda":
        set_mode_gpu()


def set_random_seed(seed: int) -> None:
    """Set the seed of new nets."""
    settings.set("seed", int(seed))


def set_phase_train() -> None:
    """Set the default phase of nets to TRAIN, for scripts of Caffe's first versions."""
    _phase[:] = [TRAIN]


def set_phase_test() -> None:
    """Set the default phase of nets to TEST, for scripts of Caffe's first versions."""
    _phase[:] = [TEST]


def default_phase() -> Phase | None:
    """Return the default phase of nets, or None if it was not set."""
    return _phase[0] if _phase else None


def layer_type_list() -> list[str]:
    """Return the names of all layer types."""
    return layer_types()


def init_log(level: int | None = None, stderr: bool | None = None) -> None:
    """Start the log.

    Args:
        level: Lowest level: 0 info, 1 warning, 2 error, 3 fatal; defaults to
            ``GLOG_minloglevel``, else 0.
        stderr: False shows only errors, since glog writes other levels to files; defaults to
            ``GLOG_logtostderr``, else true.
    """
    with _lock:
        _started_log[:] = [True]
        _start(level, _to_stderr() if stderr is None else stderr)


def keep_glog_settings() -> None:
    """Keep the variables that glog reads when Caffe is loaded; scripts unset them after that."""
    names = "GLOG_minloglevel", "GLOG_logtostderr"
    _glog.update((name, os.environ[name]) for name in names if name in os.environ)


def begin_log() -> None:
    """Start the log, unless the program has configured it."""
    with _lock:
        if _started_log:
            return
        _started_log.append(True)
        handlers = logging.getLogger("demitasse").handlers
        if all(isinstance(handler, logging.NullHandler) for handler in handlers):
            _start(None, _to_stderr())


def log(message: str) -> None:
    """Log a line at level info."""
    begin_log()
    _logger.info("%s", message, stacklevel=2)


def _start(level: int | None, stderr: bool) -> None:
    if level is None and (kept := _glog.get("GLOG_minloglevel", "")).isdecimal():
        level = int(kept)
    named = None if level is None else GLOG_LEVELS[max(0, min(level, len(GLOG_LEVELS) - 1))]
    start_logging(named, stream=_Stderr())
    logger = logging.getLogger("demitasse")
    if any(type(handler) is logging.StreamHandler for handler in logging.getLogger().handlers):
        stop_propagation()  # logging.basicConfig() would repeat each line
    if not stderr:
        logger.setLevel(max(logger.level, logging.ERROR))


def _to_stderr() -> bool:
    """Return True if ``GLOG_logtostderr`` is unset or true."""
    name = "GLOG_logtostderr"
    value = _glog.get(name) or os.environ.get(name, "1")
    return value[:1].lower() not in {"0", "f", "n"}


class _Stderr:
    """The current ``sys.stderr``, which notebooks and test runners replace."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class Timer:
    """Measures the time from ``start`` to ``stop``, and synchronizes a GPU at both."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._seconds = 0.0

    def start(self) -> None:
        """Start the timer; a running timer continues."""
        if self._started is None:
            current_device().backend.synchronize()
            self._started = perf_counter()

    def stop(self) -> None:
        """Stop the timer; a stopped timer keeps its time."""
        if self._started is not None:
            current_device().backend.synchronize()
            self._seconds, self._started = perf_counter() - self._started, None

    @property
    def ms(self) -> float:
        """Time of the last measurement in milliseconds; stops a running timer."""
        self.stop()
        return self._seconds * 1000
