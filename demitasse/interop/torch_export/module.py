"""Python source of exported modules: class, ``load`` function, and layout of lines."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.graph import listed
from demitasse.interop.export.layer_graph import LayerGraph, Value
from demitasse.interop.torch_export.code import (
    GLOBALS,
    ModuleCode,
    Names,
    docstring_text,
    function_sources,
    literal,
)
from demitasse.interop.torch_export.converters import CONVERTERS
from demitasse.version import __version__


@dataclass(frozen=True)
class Module:
    """Source and arrays of an exported module.

    Attributes:
        name: Name of the class.
        arrays: state_dict: name -> array.
        where: Name of a value -> (variable in ``forward``, number of earlier assignments).
    """

    name: str
    text: str
    arrays: dict[str, np.ndarray]
    where: dict[str, tuple[str, int]]


def build_module(layers: LayerGraph, name: str, origin: str) -> Module:
    """Convert a layer graph to a module, for a net of this name, from a file or ""."""
    code, faults = ModuleCode(layers.inputs), []
    for node in layers.nodes:
        try:
            found = CONVERTERS[node.layer.type](node, code)
            results = [found] if isinstance(found, str) else found
            for expression, top in zip(results, node.tops, strict=False):
                code.let(expression, top)
        except DemitasseError as error:
            faults.append((node.layer.name, f"{node.label}: {error}"))
            for top in node.tops:
                code.let("None", top)
        for top in node.tops:
            code.record_sizes(top)
    if faults:
        names, texts = zip(*faults, strict=True)
        message = (
            f"{len(faults)} layer{'s' * (len(faults) > 1)} cannot be converted to PyTorch:\n"
            f"{listed(texts)}"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED, layers=list(names))
    words = re.findall(r"[0-9a-zA-Z]+", name)
    wish = "".join(word[0].upper() + word[1:] for word in words)
    class_name = Names(GLOBALS, "Net").give(wish or "Net")
    text = _source(class_name, name, origin, layers, code)
    return Module(class_name, text, code.arrays, code.where)


def _source(class_name: str, name: str, origin: str, layers: LayerGraph, code: ModuleCode) -> str:
    """Return the contents of the Python file."""
    inputs = [code.variable(value) for value in layers.inputs]
    ends = {name: code.variable(value) for name, value in layers.outputs.items()}
    returned = f"{{{', '.join(f'{literal(name)}: {one}' for name, one in ends.items())}}}"
    if len(ends) == 1:
        [returned] = ends.values()
    text = docstring_text(name)
    title = f"The Caffe net {text}" if text.strip() else "A Caffe net"
    source = f" of {docstring_text(origin)}" if origin else ""
    body = [
        f"class {class_name}(nn.Module):",
        f'    """{title}, in phase TEST.',
        "",
        "    Shapes:",
        *_shapes(layers.inputs, code),
        "    ->",
        *_shapes(layers.outputs.values(), code),
        '    """',
        "",
        *format_line(f"inputs = {_names([value.name for value in layers.inputs])}", 4),
        *format_line(f"outputs = {_names(list(layers.outputs))}", 4),
        "",
        "    def __init__(self):",
        "        super().__init__()",
        *(line for text in code.attributes for line in format_line(text, 8)),
        "",
        *format_line(f"def forward({', '.join(['self', *inputs])}):", 4),
        *(line for text in code.lines for line in format_line(text, 8)),
        *format_line(f"return {returned}", 8),
    ]
    parts = [*function_sources(code.functions), "\n".join(body), _load(class_name)]
    text = "\n\n\n".join(parts)
    lines = [f'"""{title}{source}, written by Demitasse {__version__}.', "",
             "``load()`` returns the net with the weights beside this file.", '"""', "",
             "from pathlib import Path", ""]  # fmt: skip
    if re.search(r"\btorch\.", text.replace("safetensors.torch import", "")):
        lines.append("import torch")
    if re.search(r"\bF\.", text):
        lines.append("import torch.nn.functional as F")
    lines.append("from torch import nn")
    return "\n".join(lines) + "\n\n\n" + text + "\n"


def _load(class_name: str) -> str:
    return f'''def load(weights=None):
    """Return the net with the weights of a file, by default those beside this file."""
    from safetensors.torch import load_file

    weights = weights or Path(__file__).with_suffix(".safetensors")
    net = {class_name}()
    net.load_state_dict(load_file(weights))
    return net.eval()'''


def _names(names: list[str]) -> str:
    text = ", ".join(map(literal, names))
    return f"({text},)" if len(names) == 1 else f"({text})"


def _shapes(values: Iterable[Value], code: ModuleCode) -> list[str]:
    return [
        f"        {code.variable(value)}: ({', '.join(map(str, value.sizes))})" for value in values
    ]


# -- layout of lines -----------------------------------------------------------------------------

WIDTH = 88
"""Largest line length."""

INDENT = 4
"""Indentation inside of brackets."""

OPENING, CLOSING = "([{", ")]}"


def format_line(text: str, indent: int) -> list[str]:
    """Return the lines of a statement, broken at its last bracket as formatters do."""
    spaces, inner = " " * indent, indent + INDENT
    if len(spaces + text) <= WIDTH:
        return [spaces + text]
    target, equals, value = text.partition(" = ")
    operands = _operands(value) if equals and target.isidentifier() else []
    if len(operands) > 1:  # a sum or product gets its own brackets
        together = " " * inner + " ".join(operands)
        lines = [together] if len(together) <= WIDTH else [" " * inner + one for one in operands]
        return [f"{spaces}{target} = (", *lines, f"{spaces})"]
    brackets = [place for place, character in _outermost(text) if character in OPENING + CLOSING]
    if not brackets:
        return [spaces + text]
    opening, end = brackets[-2:]
    head, inside, tail = text[: opening + 1], text[opening + 1 : end], text[end:]
    if equals and indent + len(head) > WIDTH:
        return [f"{spaces}{target} = (", *format_line(value, inner), f"{spaces})"]
    commas = [place for place, character in _outermost(inside) if character == ","]
    parts = [inside[a + 1 : b].strip() for a, b in pairwise([-1, *commas, len(inside)])]
    elements = [one for one in parts if one]
    if not elements:
        return [spaces + text]
    together = " " * inner + inside
    if len(together) <= WIDTH and text[opening] == "(" and not inside.endswith(","):
        return [spaces + head, together, spaces + tail]
    lines = [spaces + head]
    for element in elements:
        broken = format_line(element, inner)
        broken[-1] += ","
        if len(broken) == 1 and len(broken[0]) > WIDTH:
            broken = format_line(element + ",", inner)
        lines += broken
    return [*lines, spaces + tail]


def _operands(text: str) -> list[str]:
    """Split at the operators of lowest precedence outside brackets; parts start with operators."""
    signs = [
        (place, character)
        for place, character in _outermost(text)
        if character in "+-*/" and text[place - 1 : place + 2 : 2] == "  "
    ]
    sums = [place for place, character in signs if character in "+-"]
    cuts = [0, *(sums or [place for place, _ in signs]), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts)]


def _outermost(text: str) -> list[tuple[int, str]]:
    """Return positions and characters outside of strings and of the insides of brackets."""
    found: list[tuple[int, str]] = []
    quote, skip, depth = "", False, 0
    for place, character in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth -= character in CLOSING
            if not depth:
                found.append((place, character))
            depth += character in OPENING
    return found
