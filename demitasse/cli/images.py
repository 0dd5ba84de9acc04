"""Flags of the verbs that show images to a trained net, and what they make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.completion import complete_devices
from demitasse.cli.options import FILE

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ImageModel", "image_options", "numbers", "reading"]

Function = Callable[..., Any]


@dataclass(frozen=True)
class ImageModel:
    """Which net looks at images, and how they are prepared for it.

    Attributes:
        net: Its prototxt.
        weights: Its weights.
        mean_file: What is subtracted, ``.npy`` or ``.binaryproto``; None for nothing.
        input_scale: The factor after that.
        raw_scale: The factor before.
        channel_swap: The order of channels, None for that of the file.
    """

    net: str
    weights: str
    mean_file: Path | None
    input_scale: float | None
    raw_scale: float
    channel_swap: list[int] | None

    def mean(self) -> np.ndarray | None:
        """Read the mean. Shape: (C, H, W) or (C,)."""
        from demitasse.io.data.transform.mean import read_mean
        from demitasse.io.weights.npy import read_npy

        if self.mean_file is None:
            return None
        if self.mean_file.suffix == ".npy":
            return read_npy(self.mean_file)
        return read_mean(self.mean_file)


def image_options(function: Function) -> Function:
    """Add the flags; the verb gets ``image_model`` and ``device``, a name or None."""

    @click.option("--model_def", metavar="FILE", required=True, help="The net's prototxt.")
    @click.option("--pretrained_model", metavar="FILE", required=True, help="Its weights.")
    @click.option(
        "--device",
        metavar="DEVICE",
        shell_complete=complete_devices,
        help="Where to run: cpu, cuda:0, numpy, ...",
    )
    @click.option("--gpu", is_flag=True, help="Run on the first GPU, as in Caffe.")
    @click.option(
        "--mean_file",
        type=FILE,
        help="Subtract this mean, a .npy file (channels, height, width) or a .binaryproto; "
        "by default nothing is subtracted.",
    )
    @click.option("--input_scale", type=float, help="Multiply by this after the mean.")
    @click.option(
        "--raw_scale",
        type=float,
        default=255.0,
        show_default=True,
        help="Multiply pixels, which are between 0 and 1, by this before the mean.",
    )
    @click.option(
        "--channel_swap",
        default="2,1,0",
        show_default=True,
        help="Order of the channels; 2,1,0 is blue first. An empty text leaves red first.",
    )
    @wraps(function)
    def with_image_model(
        *args: Any,
        model_def: str,
        pretrained_model: str,
        device: str | None,
        gpu: bool,
        mean_file: Path | None,
        input_scale: float | None,
        raw_scale: float,
        channel_swap: str,
        **kwargs: Any,
    ) -> Any:
        if gpu and device is not None:
            message = "--device and --gpu both say where to run; give one of them"
            raise click.UsageError(message)
        image_model = ImageModel(
            model_def,
            pretrained_model,
            None if mean_file == Path() else mean_file,  # Caffe's way to say none: ''
            input_scale,
            raw_scale,
            numbers("--channel_swap", channel_swap) if channel_swap else None,
        )
        where = "cuda:0" if gpu else device
        return function(*args, image_model=image_model, device=where, **kwargs)

    return with_image_model


@contextmanager
def reading() -> Iterator[None]:
    """Tell of files and values that cannot be used as the command line does: they are bad input."""
    from demitasse.errors import ConfigError, DataError, ErrorCode

    try:
        yield
    except OSError as error:
        raise DataError(str(error), code=ErrorCode.UNREADABLE) from error
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error), code=ErrorCode.INVALID) from error


def numbers(flag: str, text: str) -> list[int]:
    """Return the whole numbers in a flag's text, which has commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        message = f"{flag} takes whole numbers with commas between them, not {text!r}"
        raise click.UsageError(message) from None
