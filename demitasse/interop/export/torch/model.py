"""A net as a file of Python."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.graph import listed
from demitasse.interop.export.sizes import Free
from demitasse.interop.export.torch.code import Code
from demitasse.interop.export.torch.layout import laid_out
from demitasse.interop.export.torch.library import helpers, needed
from demitasse.interop.export.torch.names import Names, literal, told
from demitasse.interop.export.torch.table import CONVERTERS
from demitasse.interop.export.walk import Value, Walk
from demitasse.version import __version__

__all__ = ["Module", "module_of"]

TAKEN = {"F", "Path", "load", "load_file", "nn", "torch"}


@dataclass(frozen=True)
class Module:
    """A net, written down.

    Attributes:
        name: Name of its class.
        text: The file.
        arrays: Its state_dict: name -> array.
        where: Name of a value -> its variable in ``forward``, and how many values that had before.
    """

    name: str
    text: str
    arrays: dict[str, np.ndarray]
    where: dict[str, tuple[str, int]]


def module_of(walk: Walk, name: str, origin: str) -> Module:
    """Write a net down.

    Args:
        walk: The net.
        name: What it is called.
        origin: Name of the file that it comes from; "" for none.

    Raises:
        NetError: Some layers cannot be written: all are named.
    """
    code, faults = Code(walk.inputs), []
    for step in walk.steps:
        try:
            CONVERTERS[step.layer.type](step, code)
        except DemitasseError as error:
            faults.append((step.layer.name, f"{step.place.called}: {error}"))
            for top in step.tops:
                code.let("None", top)
        for top in step.tops:
            code.know(top)
    if faults:
        names, texts = zip(*faults, strict=True)
        message = (
            f"{len(faults)} layer{'s' * (len(faults) > 1)} cannot be written in PyTorch:\n"
            f"{listed(texts)}"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED, layers=list(names))
    own = _class_name(name)
    return Module(own, _text(own, name, origin, walk, code), code.arrays, code.where)


def _class_name(name: str) -> str:
    words = re.findall(r"[0-9a-zA-Z]+", name)
    text = "".join(word[0].upper() + word[1:] for word in words)
    return Names({*TAKEN, *helpers()}, "Net").give(text or "Net")


def _text(own: str, name: str, origin: str, walk: Walk, code: Code) -> str:
    """Return the file."""
    inputs = [code.variable(value) for value in walk.inputs]
    shown = f"The Caffe net {told(name)}" if told(name).strip() else "A Caffe net"
    source = f" of {told(origin)}" if origin else ""
    body = [
        f"class {own}(nn.Module):",
        f'    """{shown}, in phase TEST.',
        "",
        "    Shapes:",
        *(f"        {code.variable(value)}: {_sizes(value)}" for value in walk.inputs),
        "    ->",
        *(f"        {code.variable(value)}: {_sizes(value)}" for value in walk.outputs.values()),
        '    """',
        "",
        *laid_out(f"inputs = {_names([value.name for value in walk.inputs])}", 4),
        *laid_out(f"outputs = {_names(list(walk.outputs))}", 4),
        "",
        "    def __init__(self):",
        "        super().__init__()",
        *(line for text in code.attributes for line in laid_out(text, 8)),
        "",
        *laid_out(f"def forward({', '.join(['self', *inputs])}):", 4),
        *(line for text in code.lines for line in laid_out(text, 8)),
        *laid_out(_returned(walk, code), 8),
    ]
    functions = needed(code.helpers)
    text = "\n\n\n".join([*functions, "\n".join(body), _load(own)])
    lines = [f'"""{shown}{source}, written by Demitasse {__version__}.', "",
             "``load()`` returns it with its weights, which lie beside this file.", '"""', "",
             "from pathlib import Path", ""]  # fmt: skip
    code_alone = text.replace("safetensors.torch import", "")
    if re.search(r"\btorch\.", code_alone):
        lines.append("import torch")
    if re.search(r"\bF\.", text):
        lines.append("import torch.nn.functional as F")
    lines.append("from torch import nn")
    return "\n".join(lines) + "\n\n\n" + text + "\n"


def _load(own: str) -> str:
    return f'''def load(weights=None):
    """Return the net with weights from a file, ready to be used.

    Without one they are those beside this file.
    """
    from safetensors.torch import load_file

    weights = weights or Path(__file__).with_suffix(".safetensors")
    net = {own}()
    net.load_state_dict(load_file(weights))
    return net.eval()'''


def _returned(walk: Walk, code: Code) -> str:
    """Return the last line: one value, or several by the names of their blobs."""
    ends = {name: code.variable(value) for name, value in walk.outputs.items()}
    if len(ends) == 1:
        return f"return {next(iter(ends.values()))}"
    return f"return {{{', '.join(f'{literal(name)}: {one}' for name, one in ends.items())}}}"


def _names(names: list[str]) -> str:
    text = ", ".join(map(literal, names))
    return f"({text},)" if len(names) == 1 else f"({text})"


def _sizes(value: Value) -> str:
    shown = [str(size) if isinstance(size, Free) else str(int(size)) for size in value.sizes]
    return f"({', '.join(shown)})"
