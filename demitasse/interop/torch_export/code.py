"""Parts of an exported module: attributes, arrays, lines, Python names and functions."""

import ast
import keyword
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.export.sizes import Size, SizeSources, SymbolicSize
from demitasse.interop.names import unique_name

MODULE = """
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double
    dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter
    get_submodule half inputs ipu load_state_dict modules mtia named_buffers named_children
    named_modules named_parameters outputs parameters register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state
    set_submodule share_memory state_dict to to_empty train training type xpu zero_grad
"""
"""Attribute names of ``nn.Module``."""

GLOBALS = {"F", "Path", "float", "load", "load_file", "nn", "self", "torch"}
"""Names that the code of a module uses."""


class ModuleCode:
    """Source lines and arrays of a module.

    Attributes:
        attributes: Lines of ``__init__``.
        arrays: Name in the state_dict -> array.
        lines: Lines of ``forward``.
        functions: Names of called functions of ``functions.py``.
        where: Name of a value -> (variable, number of earlier assignments).
    """

    def __init__(self, inputs: Iterable[Value]) -> None:
        self.attributes: list[str] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.lines: list[str] = []
        self.functions: dict[str, None] = {}
        self.where: dict[str, tuple[str, int]] = {}
        self._attributes = Names(MODULE.split(), "layer")
        self._names = Names({*GLOBALS, *functions()}, "blob")
        self._blobs: dict[str, str] = {}
        self._assigned: dict[str, int] = {}
        self._shared: dict[tuple[object, ...], str] = {}
        self._size_sources = SizeSources()
        for value in inputs:
            self._written(value)
            self.record_sizes(value)

    # -- values --------------------------------------------------------------------------------

    def variable(self, value: Value) -> str:
        """Return the variable of a value: one for each blob.

        An in-place layer can reuse the variable, as no later layer reads the old value.
        """
        if value.blob not in self._blobs:
            self._blobs[value.blob] = self._names.give(value.blob)
        return self._blobs[value.blob]

    def let(self, expression: str, to: Value | str) -> str:
        """Add an assignment to a value, or to a new variable with this name."""
        if isinstance(to, Value) and expression == self.variable(to):
            self.where[to.name] = expression, self._assigned[expression] - 1
            return expression
        [name] = self.let_several(expression, [to])
        return name

    def let_several(self, expression: str, to: Sequence[Value | str]) -> list[str]:
        """Add an assignment to several values."""
        names = [
            self._names.give(one) if isinstance(one, str) else self._written(one) for one in to
        ]
        self.lines.append(f"{', '.join(names)} = {expression}")
        return names

    def let_tops(self, expression: str, tops: Sequence[Value], count: int) -> Sequence[str]:
        """Add an assignment of ``count`` values to tops, and to unread variables for the others.

        Returns no expressions, as the result of a converter.
        """
        names: list[Value | str] = [*tops, *["unused"] * count]
        self.let_several(expression, names[:count])
        return []

    def call(self, name: str, *arguments: object, **options: object) -> str:
        """Return a call of a function of ``functions.py``, and add the function to the module.

        Text is an expression; other arguments are values, or are written as literals.
        """
        self.functions[name] = None
        texts = [self._argument(one) for one in arguments]
        texts += [f"{key}={self._argument(one)}" for key, one in options.items()]
        return f"{name}({', '.join(texts)})"

    def _argument(self, given: object) -> str:
        if isinstance(given, Value):
            return self.variable(given)
        return number(given) if isinstance(given, float) else str(given)

    def record_sizes(self, value: Value) -> None:
        """Record which symbolic sizes a value's shape determines."""
        self._size_sources.record(self.variable(value), value.sizes)

    def _written(self, value: Value) -> str:
        name = self.variable(value)
        self.where[value.name] = name, self._assigned.get(name, 0)
        self._assigned[name] = self._assigned.get(name, 0) + 1
        return name

    # -- sizes ---------------------------------------------------------------------------------

    def size(self, size: Size) -> str:
        """Return the expression of a size."""
        if isinstance(size, int):
            return str(size)
        variable, axis = self._size_sources.find(size)
        text = f"{variable}.shape[{axis}]"
        text = text if size.factor == 1 else f"{size.factor} * {text}"
        if size.extra:
            text += f" {'-' if size.extra < 0 else '+'} {abs(size.extra)}"
        return text

    def reshaped(self, x: str | Value, sizes: Sequence[Size]) -> str:
        """Return a reshape; one size can be -1, and PyTorch infers a single symbolic size."""
        x = x if isinstance(x, str) else self.variable(x)
        free = [size for size in sizes if isinstance(size, SymbolicSize)]
        if len(free) == 1 and 0 not in sizes and -1 not in sizes:
            shown = [str(size) if isinstance(size, int) else "-1" for size in sizes]
        else:
            shown = [self.size(size) for size in sizes]
        return f"{x}.reshape({', '.join(shown) if shown else '()'})"

    # -- attributes ----------------------------------------------------------------------------

    def module(self, node: LayerNode, made: str, **arrays: np.ndarray | None) -> str:
        """Add a PyTorch module, made by a call such as ``nn.ReLU()``, as an attribute of a layer.

        Layers with the same parameters use one module. Missing parameters are None.
        """
        name = self._attributes.give(node.layer.name)
        for key, array in arrays.items():
            if array is not None:
                self.arrays[f"{name}.{key}"] = np.asarray(array, np.float32)
        blobs = [*node.layer.blobs, *(node.scale.blobs if node.scale else ())]
        first = name
        if blobs:
            key_of = (made, *(id(blob.data_memory) for blob in blobs))
            first = self._shared.setdefault(key_of, name)
        self.attributes.append(f"self.{name} = {made if first == name else f'self.{first}'}")
        return f"self.{name}"

    def apply(self, node: LayerNode, made: str, **arrays: np.ndarray | None) -> str:
        """Add a PyTorch module and return its call with a layer's first bottom; see ``module``."""
        module = self.module(node, made, **arrays)
        return f"{module}({self.variable(node.bottoms[0])})"

    def parameters(self, node: LayerNode, **arrays: np.ndarray | None) -> str:
        """Add the parameters of a layer without a PyTorch module, as a ParameterDict."""
        parts = [
            f'"{key}": torch.empty({_shape(array)})'
            for key, array in arrays.items()
            if array is not None
        ]
        return self.module(node, f"nn.ParameterDict({{{', '.join(parts)}}})", **arrays)

    def buffer(self, node: LayerNode, array: np.ndarray) -> str:
        """Add an array as a buffer."""
        name = self._attributes.give(node.layer.name)
        self.attributes.append(f'self.register_buffer("{name}", torch.empty({_shape(array)}))')
        self.arrays[name] = np.asarray(array, np.float32)
        return f"self.{name}"


def _shape(array: np.ndarray) -> str:
    return ", ".join(map(str, array.shape)) if array.ndim else "()"


Result = str | Sequence[str]
"""Expression of a layer's first top, or of each top that the converter has not assigned."""

Converter = Callable[[LayerNode, ModuleCode], Result]


LONGEST = 60
"""Largest length of a name."""


class Names:
    """Unique Python names, besides ``taken`` ones; those of digits alone start with ``kind``."""

    def __init__(self, taken: Iterable[str], kind: str) -> None:
        self.taken = {*taken, *keyword.kwlist, *keyword.softkwlist}
        self.kind = kind

    def give(self, text: str) -> str:
        """Return a unique name similar to a text, no keyword of Python; see ``unique_name``."""
        plain = re.sub(r"[^0-9a-zA-Z]+", "_", text).strip("_")[:LONGEST]
        if not plain or plain[0].isdigit():
            plain = f"{self.kind}_{plain}".rstrip("_")
        return unique_name(plain, self.taken)


def literal(text: str) -> str:
    """Return an ASCII string literal, in double quotes where possible."""
    shown = ascii(text)
    if shown[0] == "'" and '"' not in shown:
        return f'"{shown[1:-1]}"'
    return shown


def docstring_text(text: str) -> str:
    """Return a text that cannot end a docstring: one line of printable ASCII, without quotes."""
    return re.sub(r'[^ -~]|["\\]', "?", text)[:LONGEST]


def number(value: float) -> str:
    """Return the shortest literal of a float32 number."""
    single = float(str(np.float32(value)))
    shown = single if np.float32(single) == np.float32(value) else float(value)
    return repr(shown) if np.isfinite(shown) else f'float("{shown}")'


def sizes(values: Iterable[int]) -> str:
    """Return a tuple of integers, or one integer if all are equal."""
    every = tuple(map(int, values))
    return str(every[0]) if len(set(every)) == 1 else str(every)


def size_options(**given: tuple[Iterable[int], int]) -> list[str]:
    """Return keyword arguments of sizes: name -> sizes and the default, which is left out."""
    return [
        f"{name}={sizes(values)}"
        for name, (values, default) in given.items()
        if set(values) != {default}
    ]


@cache
def functions() -> dict[str, tuple[str, set[str]]]:
    """Return source and used names of the functions of ``functions.py``, by name."""
    text = (files("demitasse.interop.torch_export") / "functions.py").read_text(encoding="utf-8")
    return {
        node.name: (
            ast.get_source_segment(text, node) or "",
            {one.id for one in ast.walk(node) if isinstance(one, ast.Name)},
        )
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


def function_sources(names: Iterable[str]) -> list[str]:
    """Return the sources of functions, each after the functions that it calls."""
    every, found = functions(), dict[str, str]()

    def add(name: str) -> None:
        if name not in found:
            source, used = every[name]
            for other in every:
                if other in used and other != name:
                    add(other)
            found[name] = source

    for name in names:
        add(name)
    return list(found.values())
