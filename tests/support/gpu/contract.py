"""Hold what the package calls of cupy, and the stand-in for it, against cupy itself.

    python tests/support/gpu/contract.py

It needs cupy and no GPU. Ends non-zero and lists what differs:

- a name, an argument or a class of errors that ``demitasse.backends.cupy`` uses and cupy has not;
- a function that layers call on their array namespace and ``array_api_compat.cupy`` has not;
- a name of the stand-in that cupy has not, or has with other parameters.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from gpu import functions, graphs, kernels, memory, package, pinned, streams  # noqa: E402

PACKAGE = Path(__file__).resolve().parents[3] / "demitasse"
ROOTS = {
    "cupy": "",
    "_cupy": "",
    "cuda": "cuda",
    "runtime": "cuda.runtime",
    "nccl": "cuda.nccl",
    "_nccl": "cuda.nccl",
    "_communicator": "cuda.nccl.NcclCommunicator",
}
"""What variables of ``backends/cupy`` are called that hold cupy or a part of it."""

OURS = {
    (streams.Event, "delay"), (streams.Event, "capture"), (streams.Stream, "queue"),
    (streams.ExternalStream, "queue"), (graphs.Graph, "works"), (graphs.Graph, "launches"),
    (pinned.PinnedMemoryPool, "take_back"), (memory.MemoryPool, "take_back"),
    (kernels.RawKernel, "name"),
}  # fmt: skip
"""Attributes that are the stand-in's own."""


def chain(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``; nothing for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        names.append(node.id)
    else:
        names.append("")
    return names[::-1]


def names_used() -> Iterator[tuple[str, str, ast.Call | None]]:
    """Yield where, what and how every name of cupy's is used in the backend."""
    for file in sorted((PACKAGE / "backends" / "cupy").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or id(node) in inner:
                continue
            names = chain(node)
            start = next((i for i, n in enumerate(names[:-1]) if n in ROOTS), None)
            if start is None or (start and names[0] != "self"):
                continue
            name = ".".join(filter(None, [ROOTS[names[start]], *names[start + 1 :]]))
            yield f"{file.name}:{node.lineno}", name, calls.get(id(node))


def find(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part)
    return root


def parameters(function: Any) -> list[str] | None:
    """Return the names of a callable's parameters, ``self`` left out; None where nobody says."""
    try:
        found = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        text = re.match(r"[\w.]+\((.*?)\)(?: ->.*)?$", inspect.getdoc(function) or "", re.M | re.S)
        if text is None or text.start():
            return None
        plain = re.sub(r"\([^()]*\)", "", text.group(1))  # defaults that are tuples
        found = [
            part.split("=")[0].split()[-1]
            for part in plain.split(",")
            if part.split("=")[0].strip()
        ]
    found = [name.lstrip("*") if name.startswith("*") and len(name) > 1 else name for name in found]
    return [n for n in found if n not in {"self", "/", "*", "\\*"}]


def binds(call: ast.Call, known: list[str] | None) -> bool:
    """Whether a call's arguments are among the parameters."""
    if known is None or any(isinstance(a, ast.Starred) for a in call.args):
        return True
    return len(call.args) <= len(known) and all(k.arg in known for k in call.keywords if k.arg)


def of_the_backend(cupy: ModuleType) -> Iterator[str]:
    for where, name, call in names_used():
        try:
            found = find(cupy, name)
        except AttributeError:
            yield f"{where}: cupy has no {name}"
            continue
        if call is not None and not binds(call, parameters(found)):
            yield f"{where}: {name} is called with other arguments than {parameters(found)}"


def of_the_layers() -> Iterator[str]:
    xp = import_module("array_api_compat.cupy")
    used = {
        node.attr
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and chain(node)[-2:-1] == ["xp"]
    }
    yield from (f"array_api_compat.cupy has no {n}" for n in sorted(used) if not hasattr(xp, n))


def of_the_stand_in(cupy: ModuleType) -> Iterator[str]:
    modules = {n: m for n, m in package.modules().items() if n.partition(".")[0] == "cupy"}
    for where, module in modules.items():
        for name, mine in vars(module).items():
            if name.startswith("__") or isinstance(mine, ModuleType):
                continue
            full = f"{where}.{name}".removeprefix("cupy.")
            try:
                real = find(cupy, full)
            except AttributeError:
                yield f"cupy has no {full}"
                continue
            yield from differences(full, mine, real)


def differences(name: str, mine: Any, real: Any) -> Iterator[str]:
    if isinstance(mine, type) and mine.__module__.startswith("gpu."):
        if issubclass(mine, BaseException):
            if not issubclass(real, mine.__bases__):
                yield f"{name} is not derived from {mine.__bases__}"
            return
        for attribute in dir(mine):
            if attribute.startswith("_") or any(
                issubclass(mine, cls) and attribute == own for cls, own in OURS
            ):
                continue
            if not hasattr(real, attribute):
                yield f"cupy has no {name}.{attribute}"
            elif callable(getattr(mine, attribute)):
                yield from compared(
                    f"{name}.{attribute}", getattr(mine, attribute), getattr(real, attribute)
                )
        return
    if callable(mine) and not isinstance(mine, type | functions.ufunc):
        yield from compared(name, mine, real)


def compared(name: str, mine: Any, real: Any) -> Iterator[str]:
    wanted, got = parameters(real), parameters(mine)
    if wanted is None or got is None or wanted[:1] in (["args"], ["kwargs"]):
        return
    missing = [n for n in got if n not in wanted]
    if missing or [n for n in wanted if n in got] != got:
        yield f"{name}: cupy takes {wanted}, the stand-in {got}"


def main() -> int:
    cupy = import_module("cupy")
    import_module("cupy.cuda.pinned_memory")
    import_module("cupy.cuda.nccl")
    found = [*of_the_backend(cupy), *of_the_layers(), *of_the_stand_in(cupy)]
    used = {name for _, name, _ in names_used()}
    print(*found, sep="\n")
    print(f"cupy {cupy.__version__}: {len(used)} names of it are used; {len(found)} differences")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
