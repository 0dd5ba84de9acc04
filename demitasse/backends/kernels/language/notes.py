"""Captured calls and their replay: consecutive compiled calls run without Python between them.

After an operation the caches have little of Python's data, so even a call takes some microseconds.
A call table lists functions and arguments; a compiled loop issues the calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language.compiler import compiled, status
from demitasse.backends.kernels.language.later import Call, Checked
from demitasse.backends.kernels.language.team import function_address

__all__ = ["Notes"]

ARGUMENTS = 4
"""Greatest number of arguments in a call table, all of them integers or addresses."""

COLUMNS = ARGUMENTS + 2
"""Columns of a call table: function, arguments, and a flag for checked results, which a failed
call's result overwrites."""


class Notes:
    """Captured calls, in order.

    Attributes:
        whole: True if nothing was computed without the captured calls.
        compiled: True after a replay that needed only call tables.
    """

    def __init__(self) -> None:
        self.whole, self.compiled = True, False
        self._calls: list[tuple[Any, tuple[Any, ...], Checked | None]] = []
        self._needs: list[object] = []
        self._segments: list[Callable[[], None]] | None = None

    def add(self, call: Call) -> None:
        """Record an issued call."""
        arguments, needs = call.arguments, call.needs
        if call.fixed is not None:
            arguments, more = call.fixed()
            needs = needs, more
        self._calls.append((call.function, arguments, call.checked))
        self._needs.append(needs)

    def play(self) -> None:
        """Replay the calls."""
        if self._segments is None:
            self._segments = list(self._split())
            self.compiled = all(isinstance(segment, _CallTable) for segment in self._segments)
        for segment in self._segments:
            segment()

    def __len__(self) -> int:
        return len(self._calls)

    def _split(self) -> Iterator[Callable[[], None]]:
        """Yield the segments of the replay: call tables, and single calls between them."""
        loop = _table_loop() if status().ready else None
        for in_table, calls in groupby(self._calls, lambda call: loop is not None and _fits(*call)):
            if in_table:
                yield _CallTable(loop, list(calls))
                continue
            for function, arguments, checked in calls:
                yield _SingleCall(function, arguments, checked)


class _SingleCall:
    """Replay of a single call."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], checked: Checked | None) -> None:
        self._function, self._arguments, self._checked = function, arguments, checked

    def __call__(self) -> None:
        found = self._function(*self._arguments)
        if found and self._checked is not None:
            self._checked(found)


class _CallTable:
    """Table of consecutive calls."""

    kind: ClassVar = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

    def __init__(self, loop: Any, calls: list[tuple[Any, tuple[Any, ...], Checked | None]]) -> None:
        self._loop, self._checks = loop, [checked for _, _, checked in calls]
        self._table = np.zeros((len(calls), COLUMNS), np.int64)
        for line, (function, arguments, checked) in zip(self._table, calls, strict=True):
            line[0] = function_address(function)
            line[1 : 1 + len(arguments)] = [_as_int(argument) for argument in arguments]
            line[-1] = checked is not None
        self._at = address(self._table)

    def __call__(self) -> None:
        made = self._loop(self._at, len(self._table))
        if made == len(self._table):
            return
        found, self._table[made, -1] = int(self._table[made, -1]), 1
        check = self._checks[made]
        if check is not None:
            check(found)


def _fits(function: Any, arguments: tuple[Any, ...], _: Checked | None) -> bool:
    """Return whether a call fits into a table: a ctypes function with few arguments."""
    return hasattr(function, "restype") and len(arguments) <= ARGUMENTS


def _as_int(argument: Any) -> int:
    return argument if isinstance(argument, int) else ctypes.addressof(argument)


@cache
def _table_loop() -> Any:
    """Return the loop over a table, which returns the number of calls before a failure."""
    name = "call_table"
    return _CallTable.kind(compiled(name, lambda module: _write(module, name), name)[name])


def _write(module: Any, name: str) -> None:
    """Write the loop over a call table."""
    from llvmlite import ir

    word, number = ir.IntType(64), ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(word, [word, word]), name)
    table, count = function.args
    entry, head, body, failed, more, end = (
        function.append_basic_block(part)
        for part in ("entry", "head", "body", "failed", "more", "end")
    )
    b = ir.IRBuilder(entry)
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(word)
    i.add_incoming(ir.Constant(word, 0), entry)
    b.cbranch(b.icmp_signed("<", i, count), body, end)
    b.position_at_end(body)
    line = b.add(table, b.mul(i, ir.Constant(word, COLUMNS * 8)))
    places = [
        b.inttoptr(b.add(line, ir.Constant(word, 8 * column)), word.as_pointer())
        for column in range(COLUMNS)
    ]
    called, *arguments, checked = [b.load(place) for place in places]
    kind = ir.FunctionType(number, [word] * ARGUMENTS).as_pointer()
    found = b.call(b.inttoptr(called, kind), arguments)
    nonzero = b.icmp_signed("!=", found, ir.Constant(number, 0))
    b.cbranch(b.and_(nonzero, b.icmp_signed("!=", checked, ir.Constant(word, 0))), failed, more)
    b.position_at_end(failed)
    b.store(b.sext(found, word), places[-1])
    b.ret(i)
    b.position_at_end(more)
    i.add_incoming(b.add(i, ir.Constant(word, 1)), more)
    b.branch(head)
    b.position_at_end(end)
    b.ret(count)
