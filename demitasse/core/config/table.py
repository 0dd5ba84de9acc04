"""The table of settings: name, values, default, meaning; and the other environment variables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from demitasse.core.text import read_size
from demitasse.errors import ConfigError, ErrorCode

PREFIX = "DEMITASSE_"  # prefix of the environment variables

MOST_THREADS = 4096
"""Largest number of threads; OpenMP's library overflows the stack at about ten thousand."""


def _flag(value: object) -> bool:
    text = str(value).strip().lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off", ""}:
        return False
    message = f"got {value!r}, expected 1 or 0"
    raise ValueError(message)


def _word(value: object) -> str:
    return str(value).strip().lower()


def _switch(value: object) -> str:
    """Read "auto", or a flag as "on" or "off"."""
    word = _word(value)
    return word if word == "auto" else "on" if _flag(value) else "off"


def _integer(value: object) -> int:
    """Read an integer; refuse True and 2.5, which ``int`` accepts."""
    number = value if isinstance(value, int) else int(str(value))
    if isinstance(number, bool):
        message = f"got {value!r}, expected a whole number"
        raise TypeError(message)
    return number


def _names(value: object) -> tuple[str, ...]:
    """Read a list of names, or comma-separated names."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        message = f"got {value!r}, expected a list of names"
        raise TypeError(message)
    return tuple(part.strip() for part in parts if part.strip())


@dataclass(frozen=True)
class Setting:
    """One setting: name in files and in Python, conversion, default, and purpose.

    ``from_files`` are the values that an untrusted settings file may give; None for any. A setting
    that selects code to load or run lists the values that forbid it; a setting that names files to
    write lists none.
    """

    name: str
    read: Callable[[Any], object]  # raises ValueError or TypeError
    default: object
    meaning: str  # for the documentation
    choices: tuple[object, ...] = ()  # empty for any value
    at_least: int | None = None
    at_most: int | None = None
    from_files: tuple[object, ...] | None = None
    old_name: str = ""
    old_values: Mapping[object, object] = field(default_factory=dict)  # old to present value

    def value_of(self, raw: object) -> object:
        """Convert and check a raw value; raise a ConfigError if it is not allowed."""
        try:
            value = self.read(raw)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error), code=ErrorCode.INVALID) from None
        if self.choices and value not in self.choices:
            message = f"got {value!r}, expected one of {', '.join(map(str, self.choices))}"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, expected=self.choices)
        if self.at_least is not None and isinstance(value, int) and value < self.at_least:
            message = f"got {value}, expected at least {self.at_least}"
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, expected=self.at_least)
        if self.at_most is not None and isinstance(value, int) and value > self.at_most:
            message = f"got {value}, expected at most {self.at_most}"
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, expected=self.at_most)
        return value

    @cached_property
    def variable(self) -> str:
        """Environment variable of the setting."""
        return PREFIX + self.name.upper()

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Environment variable of the setting, then the deprecated one if there is one."""
        names = (self.name, self.old_name) if self.old_name else (self.name,)
        return tuple(PREFIX + name.upper() for name in names)


TABLE = {setting.name: setting for setting in (
    Setting("device", str, "cpu", "device of nets that are constructed without one"),
    Setting("plugins", _names, (), "modules, or .py files, that add layers and backends; imported "
            "on first use", from_files=((),), old_name="import"),
    Setting("gpu_fallback", _word, "raise", "a GPU is requested and none is present: raise an "
            "error, or use the cpu with a warning",
            choices=("raise", "cpu"), old_values={"error": "raise"}),
    Setting("optimize", _flag, True, "run lowered and fused operations; off: every layer's "
            "portable code", old_name="plan"),
    Setting("seed", _integer, -1, "seed of fillers, dropout and augmentation; -1: a fresh seed",
            at_least=-1),
    Setting("memory_limit", read_size, 0, "limit of the memory of blobs on each device, e.g. 8GiB; "
            "0: no limit"),
    Setting("transfers", _word, "allow", "copies of blobs between host and device in the middle of "
            "a pass", choices=("allow", "warn", "raise"),
            old_values={"log": "warn", "error": "raise"}),
    Setting("debug_fill_stale", _flag, False, "fill the stale side of every memory with NaN, to "
            "find code that reads it", old_name="poison"),
    Setting("python_layers", _flag, True, "let nets import modules for Python layers",
            from_files=(False,)),
    Setting("log_level", _word, "info", "lowest level of messages that are logged",
            choices=("debug", "info", "warning", "error", "critical")),
    Setting("threads", _integer, 0, "threads of the CPU kernels; 0: one per usable core",
            at_least=0, at_most=MOST_THREADS),
    Setting("bad_records", _word, "raise", "records that cannot be read: raise an error, or skip "
            "to the next record", choices=("raise", "skip"), old_name="on_error"),
    Setting("onednn_library", str, "", "without effect: cpu needs no library",
            from_files=("none",)),
    Setting("jit", _flag, True, "compile kernels for this processor at run time, with LLVM",
            from_files=(False,)),
    Setting("winograd", _flag, True, "use Winograd convolution on cpu where it is faster"),
    Setting("kernel_dump", str, "", "folder for the LLVM IR and assembly of compiled kernels",
            from_files=()),
    Setting("cuda_graphs", _word, "auto", "on a GPU, launch iterations and passes as one CUDA "
            "graph where possible", choices=("auto", "off"), old_name="graph"),
    Setting("gpu_storage_dtype", _word, "float", "storage of blobs and weights on a GPU: float32, "
            "or 16 bits; arithmetic is in float32 either way",
            choices=("float", "half", "bfloat16"), old_name="storage"),
    Setting("tf32", _switch, "auto", "round the inputs of float32 arithmetic on a GPU to TF32: "
            "auto, in convolutions, as PyTorch does; on, in InnerProduct too; off, nowhere",
            choices=("auto", "on", "off")),
    Setting("deterministic", _flag, True, "on a GPU, use convolutions whose results are the same "
            "bits in every run"),
    Setting("cudnn", _flag, True, "use cuDNN's convolutions on a GPU where it is installed",
            from_files=(False,)),
    Setting("cudnn_autotune", _flag, False, "time cuDNN's plans and own kernels for each "
            "convolution and use the fastest"),
    Setting("cublas_bias", _flag, False, "let cuBLAS add the bias of InnerProduct on a GPU within "
            "the product"),
    Setting("channels_last", _flag, False, "keep blobs in channels-last order on a GPU, between "
            "cuDNN's convolutions in TF32 or 16 bits"),
    Setting("cudnn_relu", _flag, False, "let cuDNN compute the ReLU after a convolution; it may "
            "lose NaN"),
)}  # fmt: skip
"""The settings by name."""

CURRENT_NAMES = {one.old_name: one.name for one in TABLE.values() if one.old_name}
"""Present name for each deprecated one."""

OTHER_VARIABLES = {
    "DEMITASSE_REFERENCE_DATA": "tests: folder of models and data recorded from Caffe",
    "DEMITASSE_REQUIRE_GPU": "tests: fail without a GPU",
    "DEMITASSE_CUDA_EXTRA": "nox: which of the extras cuda12 and cuda13 to install",
    "DEMITASSE_TEST_BACKENDS": "conformance tests: the devices",
    "DEMITASSE_KILLS": "tests: how often a training run is killed",
    "DEMITASSE_FAULTS": "tests: largest number of faults that are injected into each writer",
    "DEMITASSE_INTERRUPTIONS": "tests: number of places in each piece of work that raise errors",
    "DEMITASSE_TEST_STAND_IN": "tests: replace cupy and two GPUs by the stand-in",
    "DEMITASSE_KERNEL_FLAGS": "tests: flags for compiling CUDA kernels for the host",
}
"""Environment variables that are not settings, and their purpose."""
