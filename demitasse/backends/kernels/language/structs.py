"""Arguments of kernels: named fields of 64 bits, in memory that Python fills.

A struct is a class with annotated fields; a name like ``row_bytes`` says what the field counts, and
a docstring says what the name does not::

    class Rows(Struct):
        first: Address
        row_bytes: Word

Python gives their values, ``Rows.values(row_bytes=64)``, where an address without a value is an
argument of each call. A kernel reads ``f.first`` and ``f.row_bytes``. A field may be a struct.

Memory is passed as arrays, never as numbers: a recorded call keeps its arrays alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from itertools import count
from operator import index
from typing import Concatenate, Final, ParamSpec, Self, SupportsIndex, get_type_hints

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.compiler import compile_all, compiled
from demitasse.backends.kernels.language.instructions import Module
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import INT, Word


class CompiledKernel:
    """A kernel that is compiled when its address, which is its index, is first used.

    Attributes:
        name: Unique name in the process.
        write: Writes the module.
    """

    def __init__(self, name: str, write: Callable[[Module], None]) -> None:
        self.name, self.write, self._address = name, write, 0

    def __index__(self) -> int:
        # not a cached_property, whose lock in Python 3.11 would stay locked in a forked child
        self._address = self._address or compiled(self.name, self.write)
        return self._address


def addresses(kernels: SupportsIndex | list[CompiledKernel]) -> list[int]:
    """Return the addresses of a kernel, or of several."""
    return [index(one) for one in (kernels if isinstance(kernels, list) else [kernels])]


def compile_kernels(kernels: Iterable[CompiledKernel], threads: int) -> None:
    """Compile kernels on several threads, before they run."""
    compile_all({kernel.name: kernel.write for kernel in kernels}, threads)


BACKENDS = "demitasse.backends."
"""Package of the objects that are searched for kernels."""


def kernels_of(owner: object) -> list[CompiledKernel]:
    """Return the kernels that an object holds in attributes, lists, and objects of the backends."""
    seen: dict[int, object] = {}
    todo: list[object] = [owner]
    while todo:
        one = todo.pop()
        if isinstance(one, list | tuple):
            todo += one
        elif isinstance(one, partial):
            todo += one.func, *one.args
        elif type(one).__module__.startswith(BACKENDS) and id(one) not in seen:
            seen[id(one)] = one
            todo += getattr(one, "__dict__", {}).values()
    return [one for one in seen.values() if isinstance(one, CompiledKernel)]


class Address(Word):
    """Kind of a field: the address of an array; Python passes the array."""

    __slots__ = ()


class OptionalAddress(Address):
    """Kind of a field: the address of an array, or 0 for None; the kernel does not read None."""

    __slots__ = ()


class Scratch(Address):
    """Kind of a field: the address of memory whose contents before the call are unused."""

    __slots__ = ()


class Output(Address):
    """Kind of a field: the address of memory that the kernel writes before it reads."""

    __slots__ = ()


class _When(Enum):
    RUNTIME = "each call"


RUNTIME: Final = _When.RUNTIME
"""Placeholder for a field whose value is an argument of each call."""

Given = SupportsIndex | np.ndarray | None
"""Value of a field in one call: an integer, an array for its address, or None for no array."""

Options = ParamSpec("Options")


class Struct:
    """Fields that are integers, addresses or structs; a kernel reads them in their order."""

    @classmethod
    def values(cls, **given: Given | Values | _When) -> Values:
        """Return values of the fields; an address without a value is :data:`RUNTIME`.

        Raises:
            TypeError: A field has no value, there is no such field, or it is of another kind.
        """
        kinds = _kinds(cls)
        found = {name: RUNTIME for name, kind in kinds.items() if issubclass(kind, Address)} | given
        faults = [f"nothing for {name}" for name in kinds if name not in found]
        for name, value in given.items():
            known = name in kinds
            fault = _fault(name, kinds[name], value) if known else f"{name}, which is no field"
            faults += [fault] if fault else []
        if faults:
            message = (
                f"{cls.__name__} was given {', '.join(faults)}; give a value for each of "
                f"{', '.join(kinds)}"
            )
            raise TypeError(message)
        return Values(cls, found)

    @classmethod
    def kernel(
        cls, name: str
    ) -> Callable[
        [Callable[Concatenate[Kernel, Self, Options], None]],
        Callable[Concatenate[int, Options], CompiledKernel],
    ]:
        """Make a kernel of a function that writes its instructions.

        The decorated function takes the floats of a vector and the writer's options. It returns the
        kernel, which is compiled when it first runs; its argument is the address of a struct.
        Options are part of the kernel's name: ``True`` flags by their names, other options as text.
        ``name``, their prefix, is unique in the process.
        """

        def decorate(
            write: Callable[Concatenate[Kernel, Self, Options], None],
        ) -> Callable[Concatenate[int, Options], CompiledKernel]:
            def kernel(
                width: int, /, *options: Options.args, **flags: Options.kwargs
            ) -> CompiledKernel:
                named = [flag if on is True else str(on) for flag, on in flags.items() if on]
                full = "_".join([f"{name}{width}", *map(str, options), *named])

                def module(of: Module) -> None:
                    k = Kernel(of, full, 1, width, threaded=True)
                    write(k, cls.read(k), *options, **flags)
                    k.done()

                module.__module__ = write.__module__  # whose sources are the cache's key
                return CompiledKernel(full, module)

            return kernel

        return decorate

    @classmethod
    def read(cls, k: Kernel) -> Self:
        """Return the fields of the struct whose address is the kernel's first argument."""
        return cls._read(k.load_word(k.arguments[0] + INT * place) for place in count())

    def store(self, k: Kernel, changes: dict[str, Word]) -> Word:
        """Write the fields, with changes, to the thread's memory; return the address.

        A kernel of the struct takes it. Changes are by names like "x.at".
        """
        words = dict(self._words()) | changes
        at = k.scratch(-(-len(words) * INT // k.vector_bytes))
        for place, word in enumerate(words.values()):
            k.store_word(word, at + INT * place)
        return at

    def _words(self) -> Iterator[tuple[str, Word]]:
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if issubclass(kind, Struct):
                yield from ((f"{name}.{inner}", word) for inner, word in value._words())
            else:
                yield name, value

    @classmethod
    def _read(cls, words: Iterator[Word]) -> Self:
        made = cls()
        for name, kind in _kinds(cls).items():
            setattr(made, name, kind._read(words) if issubclass(kind, Struct) else next(words))
        return made


class Values:
    """The values of a struct's fields.

    Attributes:
        flat: Values by names like "x.at" for fields of structs, in the kernel's order.
        kinds: Kind of each of these fields.
    """

    def __init__(self, struct: type[Struct], given: Mapping[str, Given | Values | _When]) -> None:
        self.struct = struct
        self.flat: dict[str, int | np.ndarray | _When] = {}
        self.kinds: dict[str, type] = {}
        for name, kind in _kinds(struct).items():
            value = given[name]
            if isinstance(value, Values):
                self.flat |= {f"{name}.{inner}": n for inner, n in value.flat.items()}
                self.kinds |= {f"{name}.{inner}": kind for inner, kind in value.kinds.items()}
                continue
            self.kinds[name] = kind
            self.flat[name] = value if isinstance(value, np.ndarray | _When) else index(value or 0)


class Arguments:
    """A struct's values in memory: the argument of a kernel."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._runtime: dict[str, tuple[int, type]] = {}
        self._words = (ctypes.c_int64 * len(values.flat))()
        for place, (name, value) in enumerate(values.flat.items()):
            if isinstance(value, _When):
                self._runtime[name] = place, values.kinds[name]
            else:
                self._words[place] = address(value) if isinstance(value, np.ndarray) else value

    def run(
        self, kernels: SupportsIndex | list[CompiledKernel], threads: int,
        each: Mapping[str, Given] | None = None, needs: object = None,
    ) -> None:  # fmt: skip
        """Run a kernel, or several one after the other.

        Args:
            kernels: The kernel or its address, or several.
            threads: Number of requested threads.
            each: Integers or arrays of the fields whose value is :data:`RUNTIME`; None for an
                optional array that is absent.
            needs: Arrays whose addresses are elements of these arrays; kept alive with the call.

        Raises:
            TypeError: A field has no value or one of another kind, or there is no such field.
        """
        each = each or {}
        if each.keys() != self._runtime.keys():
            message = (
                f"a kernel is run with {', '.join(each) or 'nothing'}; give it "
                f"{', '.join(self._runtime) or 'nothing'}"
            )
            raise TypeError(message)
        words = type(self._words).from_buffer_copy(self._words)  # a recorded call's own
        for name, value in each.items():
            place, kind = self._runtime[name]
            if isinstance(value, np.ndarray):
                words[place] = value.__array_interface__["data"][0]
            elif issubclass(kind, Address) and not (value is None and kind is OptionalAddress):
                message = f"{value!r} for {name}, which is the address of an array: give the array"
                raise TypeError(message)
            else:
                words[place] = index(value or 0)
        at, keep_alive = ctypes.addressof(words), (words, self.values, each, needs)
        for kernel in addresses(kernels):
            call_recorder.run_kernel(kernel, at, threads, keep_alive)


_known: dict[type, dict[str, type]] = {}


def _kinds(struct: type[Struct]) -> dict[str, type]:
    """Return the kind of each field by name; fields of the base class come first."""
    if struct not in _known:
        _known[struct] = get_type_hints(struct)
    return _known[struct]


def _fault(name: str, kind: type, value: object) -> str | None:
    """Return why a value does not fit the kind of its field, or None."""
    given = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
    if issubclass(kind, Struct):
        fits = isinstance(value, Values) and value.struct is kind
        return None if fits else f"{given} for {name}, which is {kind.__name__}.values(...)"
    if isinstance(value, _When):
        return None
    if issubclass(kind, Address):
        fits = isinstance(value, np.ndarray) and value.size > 0
        fits = fits or (value is None and kind is OptionalAddress)
        return None if fits else f"{given} for {name}, which is the address of an array"
    # the protocol is last: asking for it takes long
    fits = isinstance(value, int | SupportsIndex) and not isinstance(value, np.ndarray)
    return None if fits else f"{given} for {name}, which is an integer"
