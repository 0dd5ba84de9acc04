"""device_query: what is known of the GPUs.

Source: Caffe, ``tools/caffe.cpp`` (``device_query``) and ``Caffe::DeviceQuery``.
"""

from __future__ import annotations

from typing import Any

import click

from demitasse.cli.gpus import gpu_numbers, gpus_there
from demitasse.cli.options import json_option
from demitasse.cli.output import print_json
from demitasse.cli.verb import Verb

LINES = {
    "id": "Device id",
    "major": "Major revision number",
    "minor": "Minor revision number",
    "name": "Name",
    "totalGlobalMem": "Total global memory",
    "sharedMemPerBlock": "Total shared memory per block",
    "regsPerBlock": "Total registers per block",
    "warpSize": "Warp size",
    "memPitch": "Maximum memory pitch",
    "maxThreadsPerBlock": "Maximum threads per block",
    "maxThreadsDim": "Maximum dimension of block",
    "maxGridSize": "Maximum dimension of grid",
    "clockRate": "Clock rate",
    "totalConstMem": "Total constant memory",
    "textureAlignment": "Texture alignment",
    "asyncEngineCount": "Concurrent copy and execution",
    "multiProcessorCount": "Number of multiprocessors",
    "kernelExecTimeoutEnabled": "Kernel execution timeout",
}
"""CUDA's name of a property -> Caffe's; newer versions of CUDA lack some."""


@click.command(cls=Verb)
@click.option(
    "--gpu", default="all", metavar="ID[,ID]|all", help="Which GPUs; by default all there are."
)
@json_option
def command(gpu: str, as_json: bool) -> None:
    """Print what CUDA says of the GPUs.

    Exits with 4 where there is no GPU, or not the one that was asked for.
    """
    from demitasse.backends.cupy.library.properties import properties

    devices = [{"id": number, **properties(number)} for number in _numbers(gpu)]
    if as_json:
        print_json(devices)
        return
    for device in devices:
        click.echo("\n".join(_lines(device)))


def _numbers(gpu: str) -> list[int]:
    from demitasse.errors import DeviceError, ErrorCode

    there = gpus_there()
    numbers = gpu_numbers(gpu)
    for number in numbers:
        if number not in there:
            message = f"there is no GPU {number}; there are {', '.join(map(str, there))}"
            raise DeviceError(message, code=ErrorCode.UNAVAILABLE, got=number, expected=there)
    return numbers


def _lines(device: dict[str, Any]) -> list[str]:
    lines = []
    for key, label in LINES.items():
        if key in device:
            value = device[key]
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            if key in {"asyncEngineCount", "kernelExecTimeoutEnabled"}:
                text = "Yes" if value else "No"
            lines.append(f"{label + ':':<31}{text}")
    return lines
