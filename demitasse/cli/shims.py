"""Executables with the names and places of Caffe's tools, which run ours.

Scripts written for Caffe call ``build/tools/caffe``, ``build/tools/convert_imageset`` or
``build/examples/mnist/convert_mnist_data.bin``.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from demitasse.core.atomic import atomic_write
from demitasse.core.paths import real_path

__all__ = ["EXAMPLES", "TOOLS", "write_shims"]

TOOLS = (
    "caffe",
    "compute_image_mean",
    "convert_annoset",
    "convert_imageset",
    "device_query",
    "extract_features",
    "finetune_net",
    "get_image_size",
    "net_speed_benchmark",
    "test_net",
    "train_net",
    "upgrade_net_proto_binary",
    "upgrade_net_proto_text",
    "upgrade_solver_proto_text",
)
"""What Caffe builds in ``build/tools``, and SSD's Caffe."""

EXAMPLES = {
    "mnist": "convert_mnist_data",
    "cifar10": "convert_cifar_data",
    "siamese": "convert_mnist_siamese_data",
}
"""Folder of ``build/examples`` -> the converter that Caffe builds there."""


def write_shims(folder: Path) -> list[Path]:
    """Write an executable for each tool and converter, once as NAME and once as NAME.bin.

    Where the folder is called ``tools``, the converters also stand in ``examples`` beside it, as
    in Caffe's ``build``.

    Args:
        folder: Where to; it is made if it is not there.

    Returns:
        What was written.

    Raises:
        OSError: It cannot be written.
    """
    places = [(folder, name) for name in (*TOOLS, *EXAMPLES.values())]
    if real_path(folder).name == "tools":
        beside = real_path(folder).parent / "examples"
        places += [(beside / place, name) for place, name in EXAMPLES.items()]
    written = []
    for place, name in places:
        place.mkdir(parents=True, exist_ok=True)
        for file in (place / name, place / f"{name}.bin"):
            with atomic_write(file) as out:
                out.write(_script(name).encode())
            file.chmod(0o755)
            written.append(file)
    return written


def _script(name: str) -> str:
    python = shlex.quote(sys.executable)
    return f'#!/bin/sh\nexec {python} -m demitasse.tools.{name} "$@"\n'
