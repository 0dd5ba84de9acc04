"""Functions of the members of a parallel region: thread numbers, barriers, loop scheduling.

Loops that a compiler shares out among the members are here too.
"""

from __future__ import annotations

from llvmlite import ir

from demitasse.backends.kernels.language.words import Word
from demitasse.backends.kernels.team.function import Function, member
from demitasse.backends.kernels.team.names import original
from demitasse.backends.kernels.team.state import WAIT, Field, Member

__all__ = ["write_members"]


def write_members(module: ir.Module) -> None:
    """Write the functions."""
    _write_part(Function(module, "part", 0))
    _write_parts(Function(module, "parts", 0))
    _write_in_parallel(Function(module, "in_parallel", 0))
    _write_barrier(Function(module, "barrier", 0))
    _write_loop_next(Function(module, "loop_next", 2))
    _write_loop_start(Function(module, "loop_start", 6))
    _write_loop_end(Function(module, "loop_end", 0))


def _outside(f: Function, name: str) -> Word:
    """Hand threads that are in no region on to the OpenMP runtime; return the Member of others."""
    me = member(f)
    with f.when(f.equal(me, 0)):
        f.give(f.call(original(name), *f.arguments))
    return me


def _part_and_parts(f: Function, me: Word) -> tuple[Word, Word]:
    """Return which part is computed, and of how many; regions within a region have one."""
    part, parts = f.local(0), f.local(1)
    with f.when(f.equal(f.load(me, Member.DEPTH), 0)):
        f.store(f.load(me, Member.PART), part)
        f.store(f.load(me, Member.PARTS), parts)
    return f.load(part), f.load(parts)


def _write_part(f: Function) -> None:
    f.give(_part_and_parts(f, _outside(f, "omp_get_thread_num"))[0])


def _write_parts(f: Function) -> None:
    f.give(_part_and_parts(f, _outside(f, "omp_get_num_threads"))[1])


def _write_in_parallel(f: Function) -> None:
    _outside(f, "omp_in_parallel")
    f.give(1)


def _write_barrier(f: Function) -> None:
    me = _outside(f, "GOMP_barrier")
    with f.when(f.load(me, Member.DEPTH) > 0):
        f.give()
    parts = f.load(me, Member.PARTS)
    with f.when(f.get(Field.ALONE) > 0):  # all of them are needed, and at once
        f.set(Field.ALONE, 0)
        f.ring(parts)
    phase = f.get(Field.PHASE)
    with f.when(f.equal(f.add(Field.ARRIVED, 1) + 1, parts)):
        f.set(Field.ARRIVED, 0)
        f.add(Field.PHASE, 1)
        with f.when(f.get(Field.AT_BARRIER) > 0):
            f.wake(Field.PHASE, parts)
        f.give()
    f.wait_until(Field.PHASE, lambda now: f.unequal(now, phase), Field.AT_BARRIER, WAIT)
    f.give()


def _write_loop_start(f: Function) -> None:
    start, stop, step, chunk, first, last = f.arguments
    me = _outside(f, "GOMP_loop_static_start")
    f.store(0, me, Member.TRIPS)
    f.store(start, me, Member.START)
    f.store(stop, me, Member.STOP)
    f.store(step, me, Member.STEP)
    f.store(chunk, me, Member.CHUNK)
    f.give(f.call("loop_next", first, last))


def _write_loop_next(f: Function) -> None:
    """Write which iterations a member computes next: a block, or chunks in turn."""
    first, last = f.arguments
    me = _outside(f, "GOMP_loop_static_next")
    part, parts = _part_and_parts(f, me)
    start, stop, step, chunk, trips = (
        f.load(me, field)
        for field in (Member.START, Member.STOP, Member.STEP, Member.CHUNK, Member.TRIPS)
    )
    nearly = f.local(-1)  # so that a step that does not end at the stop counts
    with f.when(step < 0):
        f.store(1, nearly)
    left = f.local(0)
    f.store(f.quotient(stop - start + step + f.load(nearly), step), left)
    with f.when(f.load(left) < 0):
        f.store(0, left)
    count = f.load(left)
    begin, end = f.local(0), f.local(0)
    with f.when(f.equal(chunk, 0)):
        with f.when(trips > 0):
            f.give(0)
        share, more = count // parts, count % parts
        f.store(share * part + more, begin)
        f.store(share, end)
        with f.when(part < more):
            f.store((share + 1) * part, begin)
            f.store(share + 1, end)
        f.store(f.load(begin) + f.load(end), end)
    with f.when(chunk > 0):
        f.store((trips * parts + part) * chunk, begin)
        f.store(f.load(begin) + chunk, end)
        with f.when(f.load(end) > count):
            f.store(count, end)
    f.store(trips + 1, me, Member.TRIPS)
    with f.when(f.load(begin) >= f.load(end)):
        f.give(0)
    f.store(start + f.load(begin) * step, first)
    f.store(start + f.load(end) * step, last)
    f.give(1)


def _write_loop_end(f: Function) -> None:
    _outside(f, "GOMP_loop_end_nowait")
    f.give()
