"""The parts of a module while its layers are written down: attributes, arrays and lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from demitasse.blob import Blob
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.sizes import Free, Size
from demitasse.interop.export.torch.library import helpers
from demitasse.interop.export.torch.names import Names
from demitasse.interop.export.walk import Step, Value

__all__ = ["Code"]

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
"""Names that attributes of a module have already."""

GLOBALS = {"F", "Path", "float", "load", "load_file", "nn", "self", "torch"}
"""Names that lines use."""


class Code:
    """What is written of a net.

    Args:
        inputs: What the caller of the module gives.

    Attributes:
        attributes: Lines of ``__init__``.
        arrays: Name in the state_dict -> array.
        lines: Lines of ``forward``.
        helpers: Names of the functions that are called.
        where: Name of a value -> its variable, and how many values that had before.
    """

    def __init__(self, inputs: Iterable[Value]) -> None:
        self.attributes: list[str] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.lines: list[str] = []
        self.helpers: dict[str, None] = {}
        self.where: dict[str, tuple[str, int]] = {}
        self._attributes = Names(MODULE.split(), "layer")
        self._names = Names({*GLOBALS, *helpers()}, "blob")
        self._blobs: dict[str, str] = {}
        self._assigned: dict[str, int] = {}
        self._shared: dict[tuple[object, ...], str] = {}
        self._symbols: dict[str, tuple[str, int]] = {}
        for value in inputs:
            self._written(value)
            self.know(value)

    # -- values --------------------------------------------------------------------------------

    def variable(self, value: Value) -> str:
        """Return the variable of a value: that of its blob.

        Once a layer has written a blob in place, nobody reads what was there before.
        """
        if value.blob not in self._blobs:
            self._blobs[value.blob] = self._names.give(value.blob)
        return self._blobs[value.blob]

    def let(self, expression: str, to: Value | str) -> str:
        """Add a line that gives a value, or a variable for a moment, what is computed."""
        if isinstance(to, Value) and expression == self.variable(to):
            self.where[to.name] = expression, self._assigned[expression] - 1
            return expression
        [name] = self.let_several(expression, [to])
        return name

    def let_several(self, expression: str, to: Sequence[Value | str]) -> list[str]:
        """Add a line that computes several values."""
        names = [
            self._names.give(one) if isinstance(one, str) else self._written(one) for one in to
        ]
        self.lines.append(f"{', '.join(names)} = {expression}")
        return names

    def call(self, name: str, *arguments: str) -> str:
        """Return a call of a function that the module brings with it."""
        self.helpers[name] = None
        return f"{name}({', '.join(arguments)})"

    def know(self, value: Value) -> None:
        """Note what the sizes of a value that is there tell of free ones."""
        name = self.variable(value)
        self._symbols = {
            symbol: place for symbol, place in self._symbols.items() if place[0] != name
        }
        for axis, size in enumerate(value.sizes):
            if isinstance(size, Free) and size.factor == 1 and size.extra == 0:
                self._symbols.setdefault(size.symbol, (name, axis))

    def _written(self, value: Value) -> str:
        name = self.variable(value)
        self.where[value.name] = name, self._assigned.get(name, 0)
        self._assigned[name] = self._assigned.get(name, 0) + 1
        return name

    # -- sizes ---------------------------------------------------------------------------------

    def size(self, size: Size) -> str:
        """Return a size; a free one as it is when the module runs.

        Raises:
            NetError: It is not known before the layer has run.
        """
        if isinstance(size, int):
            return str(size)
        if size.symbol not in self._symbols:
            message = f"the size {size} is not known before the layer has run"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, got=str(size))
        variable, axis = self._symbols[size.symbol]
        text = f"{variable}.shape[{axis}]"
        text = text if size.factor == 1 else f"{size.factor} * {text}"
        if size.extra:
            text += f" {'-' if size.extra < 0 else '+'} {abs(size.extra)}"
        return text

    def reshaped(self, x: str, sizes: Sequence[Size]) -> str:
        """Return a change of shape; one size may be -1, and one free size is left to PyTorch."""
        free = [size for size in sizes if isinstance(size, Free)]
        if len(free) == 1 and 0 not in sizes and -1 not in sizes:
            shown = [str(size) if isinstance(size, int) else "-1" for size in sizes]
        else:
            shown = [self.size(size) for size in sizes]
        return f"{x}.reshape({', '.join(shown) if shown else '()'})"

    # -- attributes ----------------------------------------------------------------------------

    def module(self, step: Step, made: str, **arrays: np.ndarray | None) -> str:
        """Add a module of PyTorch's as the attribute of a layer.

        Args:
            step: The layer.
            made: What makes it, such as ``nn.ReLU()``.
            **arrays: Its parameters by their names; None for one that it has not.
        """
        name = self._attributes.give(step.layer.name)
        self.attributes.append(f"self.{name} = {made}")
        self._store(name, {key: array for key, array in arrays.items() if array is not None})
        self._share(step, name, made)
        return f"self.{name}"

    def parameters(self, step: Step, **arrays: np.ndarray | None) -> str:
        """Add the parameters of a layer that is no module of PyTorch's, as a ParameterDict."""
        name = self._attributes.give(step.layer.name)
        there = {key: array for key, array in arrays.items() if array is not None}
        parts = [f'"{key}": torch.empty({_shape(array)})' for key, array in there.items()]
        made = f"nn.ParameterDict({{{', '.join(parts)}}})"
        self.attributes.append(f"self.{name} = {made}")
        self._store(name, there)
        self._share(step, name, made)
        return f"self.{name}"

    def buffer(self, step: Step, array: np.ndarray) -> str:
        """Add an array that is no parameter."""
        name = self._attributes.give(step.layer.name)
        self.attributes.append(f'self.register_buffer("{name}", torch.empty({_shape(array)}))')
        self.arrays[name] = np.asarray(array, np.float32)
        return f"self.{name}"

    def _store(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        for key, array in arrays.items():
            self.arrays[f"{name}.{key}"] = np.asarray(array, np.float32)

    def _share(self, step: Step, name: str, made: str) -> None:
        """Let layers that have all their parameters in common be one module."""
        blobs: list[Blob] = [*step.layer.blobs, *(step.scale.blobs if step.scale else ())]
        if blobs:
            key = (made, *(id(blob.data_memory) for blob in blobs))
            first = self._shared.setdefault(key, name)
            if first != name:
                self.attributes[-1] = f"self.{name} = self.{first}"


def _shape(array: np.ndarray) -> str:
    return ", ".join(map(str, array.shape)) if array.ndim else "()"
