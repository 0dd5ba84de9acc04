"""The settings there are: name, values, default, meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demitasse.core.capacity.sizes import read_size

__all__ = ["MOST_THREADS", "PREFIX", "TABLE", "Setting"]

PREFIX = "DEMITASSE_"
"""What the names of our environment variables begin with."""

MOST_THREADS = 4096
"""Beyond any machine; of some ten thousand, OpenMP's library overflows the stack."""


def _flag(value: object) -> bool:
    text = str(value).strip().lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off", ""}:
        return False
    message = f"{value!r} is neither true nor false; write 1 or 0"
    raise ValueError(message)


def _word(value: object) -> str:
    return str(value).strip().lower()


def _whole(value: object) -> int:
    """Read a whole number; True and 2.5 are none, though ``int`` would take them."""
    number = value if isinstance(value, int) else int(str(value))
    if isinstance(number, bool):
        message = f"{value!r} is no whole number"
        raise TypeError(message)
    return number


def _names(value: object) -> tuple[str, ...]:
    """Read a list of names, or a text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        message = f"{value!r} is no list of names"
        raise TypeError(message)
    return tuple(part.strip() for part in parts if part.strip())


@dataclass(frozen=True)
class Setting:
    """One thing that can be set.

    Attributes:
        name: What it is called in files and in Python.
        read: Makes a value of what was written; ValueError if it cannot.
        default: The value where nothing is set.
        meaning: What it is for.
        choices: The values there are; none given: any.
        at_least: The smallest number it may be, or None.
        at_most: The largest number it may be, or None.
        from_files: The values that settings files may give unless the user trusts them; None: any.
            For a setting that decides which code is loaded or run, those that forbid it; none for
            one that names files to be written.
    """

    name: str
    read: Callable[[Any], object]
    default: object
    meaning: str
    choices: tuple[object, ...] = ()
    at_least: int | None = None
    at_most: int | None = None
    from_files: tuple[object, ...] | None = None

    def value_of(self, raw: object) -> object:
        """Return the value of what was written.

        Raises:
            ValueError: It cannot be read, or is not allowed; says what is.
        """
        value = self.read(raw)
        if self.choices and value not in self.choices:
            message = f"it must be one of {', '.join(map(str, self.choices))}"
            raise ValueError(message)
        if self.at_least is not None and isinstance(value, int) and value < self.at_least:
            message = f"it must be at least {self.at_least}"
            raise ValueError(message)
        if self.at_most is not None and isinstance(value, int) and value > self.at_most:
            message = f"it must be at most {self.at_most}"
            raise ValueError(message)
        return value

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()


TABLE = {
    setting.name: setting
    for setting in (
        Setting("device", str, "cpu", "where nets run when nobody says otherwise"),
        Setting(
            "import",
            _names,
            (),
            "modules, or .py files, that add layers and backends; imported when they are needed",
            from_files=((),),
        ),
        Setting(
            "gpu_fallback",
            _word,
            "error",
            "where a GPU is asked for and there is none: an error, or the cpu with a warning",
            choices=("error", "cpu"),
        ),
        Setting("plan", _flag, True, "run lowered operations; off: every layer's portable code"),
        Setting(
            "seed",
            _whole,
            -1,
            "seed of fillers, dropout and augmentation; -1: a fresh one",
            at_least=-1,
        ),
        Setting(
            "memory_limit",
            read_size,
            0,
            "what blobs may take on each device, e.g. 8GiB; 0: as much as there is",
        ),
        Setting(
            "transfers",
            _word,
            "allow",
            "copies of blobs between host and device in the middle of a pass",
            choices=("allow", "log", "error"),
        ),
        Setting("poison", _flag, False, "fill the stale side of every memory with NaN (debugging)"),
        Setting(
            "python_layers",
            _flag,
            True,
            "whether a net may import modules for Python layers",
            from_files=(False,),
        ),
        Setting(
            "log_level",
            _word,
            "info",
            "least severe messages that are logged",
            choices=("debug", "info", "warning", "error", "critical"),
        ),
        Setting(
            "threads",
            _whole,
            0,
            "threads of the CPU kernels; 0: as many as the machine has",
            at_least=0,
            at_most=MOST_THREADS,
        ),
        Setting(
            "on_error",
            _word,
            "raise",
            "broken records: raise, or skip to the next one",
            choices=("raise", "skip"),
        ),
        Setting(
            "onednn_library",
            str,
            "",
            "file of oneDNN's library; none: do without it",
            from_files=("none",),
        ),
        Setting(
            "jit",
            _flag,
            True,
            "make kernels for the processor at run time, with LLVM",
            from_files=(False,),
        ),
        Setting(
            "winograd",
            _flag,
            True,
            "convolve by Winograd's minimal filtering on cpu where it is faster",
        ),
        Setting(
            "kernel_dump",
            str,
            "",
            "folder that the text and assembly of kernels made at run time are written to",
            from_files=(),
        ),
        Setting(
            "graph",
            _word,
            "auto",
            "on a GPU, launch iterations and passes as one where possible: auto; or never: off",
            choices=("auto", "off"),
        ),
        Setting(
            "storage",
            _word,
            "float",
            "how a GPU keeps blobs and weights of nets of phase TEST: as they are computed, or in "
            "16 bits; arithmetic is in float32 either way",
            choices=("float", "half", "bfloat16"),
        ),
        Setting(
            "tf32",
            _flag,
            False,
            "let float32 products and convolutions on a GPU round their inputs to TF32",
        ),
        Setting(
            "deterministic",
            _flag,
            True,
            "on a GPU, convolve the same way to the bit in every run",
        ),
        Setting(
            "cudnn",
            _flag,
            True,
            "convolve by cuDNN on a GPU where it is installed",
            from_files=(False,),
        ),
        Setting(
            "cudnn_autotune",
            _flag,
            False,
            "time cuDNN's plans for each convolution and take the fastest",
        ),
        Setting(
            "cudnn_relu",
            _flag,
            False,
            "let cuDNN compute the ReLU after a convolution; it may lose NaN",
        ),
    )
}
