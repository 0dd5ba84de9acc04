"""Parallel regions: functions that every member of a team calls with its part.

A region takes the first team that no thread leads. It begins when the team has a helper for each
part but the leader's, because parts may wait for each other.
"""

from llvmlite import ir

from demitasse.backends.kernels.language.words import Condition, Word
from demitasse.backends.kernels.team.runtime import (
    PARTS,
    REGION,
    STATE_WAIT,
    TEAMS,
    Field,
    Function,
    Member,
    member,
    take_member,
    write_members,
)

SPIN = 800_000
"""Ticks that a helper spins before it sleeps; a pass seldom pauses longer."""

BUSY_SHIFT = 4
"""Halvings of the ticks that threads spin after helpers were late, when cores are busy."""

LATE = 1_500_000
"""Least wait, in ticks, that counts as a late helper. The helper had no core if the wait also
exceeds the leader's own work."""

ALONE_AT_FIRST, LEVELS = 16, 5
"""Regions without wake-ups after a late helper, and how often this number doubles."""

LONG_ROUNDS = 50
"""Timed sleeps of a helper before it sleeps without a timeout."""

GOOD_ENOUGH = 8
"""Consecutive regions without a late helper that halve the number."""

NAP = 100_000
"""Nanoseconds of a helper's timed sleep. A helper then joins a region that is still running: long
regions are shared, and a part can wait for another part."""

IMPOSSIBLE = 1
"""Result instead of a team's address: no team has the helpers, and the system refuses threads."""


def write_team(module: ir.Module) -> None:
    """Write the functions that begin and end regions, those of members, and the helpers' loop."""
    write_members(module)
    _write_take(Function(module, "take", 1))
    _write_prepare(Function(module, "prepare", 1))
    _write_start(Function(module, "start", 3))
    _write_end(Function(module, "end", 0))
    f = Function(module, "parallel", 4)
    work, argument, wanted, _ = f.arguments
    f.call("start", work, argument, wanted)
    f.call_at(work, argument)
    f.call("end")
    f.give()
    _write_helper(Function(module, "helper", 1))


def _taken(ticket: Word) -> Word:
    return ticket % PARTS


def _parts(ticket: Word) -> Word:
    return (ticket >> 16) % PARTS


def _open(ticket: Word) -> Condition:
    return _taken(ticket) < _parts(ticket)


def _write_take(f: Function) -> None:
    """Write the function that takes a team with the helpers for a number of parts.

    Its result is the team's address, 0 if other threads lead the teams with enough helpers, or
    ``IMPOSSIBLE``.
    """
    (parts,) = f.arguments
    index, result = f.local(0), f.local(IMPOSSIBLE)
    with f.forever() as teams:
        with f.when(f.load(index) >= TEAMS):
            teams.leave()
        f.team = f.first_team() + f.load(index) * int(Field.END)
        f.store(f.load(index) + 1, index)
        led = f.local(1)
        with f.when(f.replace(Field.BUSY, 0, 1)):
            f.store(0, led)
        with f.when(f.load(led) > 0):
            f.store(0, result)
            teams.repeat()
        with f.forever() as helpers:
            with f.when(f.get(Field.HELPERS) >= parts - 1):
                helpers.leave()
            with f.when(f.equal(f.call("start_helper", f.team), 0)):
                f.set(Field.BUSY, 0)
                teams.repeat()
            f.add(Field.HELPERS, 1)
        f.give(f.team)
    f.give(f.load(result))


def _take(f: Function, parts: Word) -> Word:
    """Return the address of a team, now led by this thread, or ``IMPOSSIBLE``."""
    team = f.local(0)
    with f.forever() as loop:
        f.store(f.call("take", parts), team)
        with f.when(f.unequal(f.load(team), 0)):
            loop.leave()
        f.call("yield")
    return f.load(team)


def _write_prepare(f: Function) -> None:
    """Write the function that starts the helpers for a number of parts; 0 if they are there."""
    (parts,) = f.arguments
    team = _take(f, parts)
    with f.when(f.equal(team, IMPOSSIBLE)):
        f.give(1)
    f.team = team
    f.set(Field.BUSY, 0)
    f.give()


def _write_start(f: Function) -> None:
    work, argument, wanted = f.arguments
    me = member(f)
    with f.when(f.unequal(me, 0)):
        f.store(f.load(me, Member.DEPTH) + 1, me, Member.DEPTH)
        f.give()
    count, team = f.local(0), f.local(0)
    f.store(wanted % REGION, count)
    f.store(_take(f, f.load(count)), team)
    with f.when(f.equal(f.load(team), IMPOSSIBLE)):  # not after "prepare"
        f.store(1, count)
        f.store(_take(f, f.word(1)), team)
    f.team, parts = f.load(team), f.load(count)
    leader = f.shared(Field.LEADER)
    f.store(0, leader, Member.PART)
    f.store(parts, leader, Member.PARTS)
    f.store(0, leader, Member.DEPTH)
    f.store(f.team, leader, Member.TEAM)
    take_member(f, leader)
    f.set(Field.WORK, work)
    f.set(Field.ARGUMENT, argument)
    f.set(Field.DONE, 0)
    alone = f.get(Field.ALONE)
    with f.when(alone > 0):
        f.set(Field.ALONE, alone - 1)
    f.set(Field.CALLED, 0)
    with f.when(alone < 2):
        f.set(Field.CALLED, 1)
    f.set(Field.TICKET, ((f.get(Field.TICKET) >> 32) + 1) * REGION + parts * PARTS + 1)
    # after the ticket: a helper first counts itself as asleep, and then reads the ticket
    with f.when((alone < 2) & (f.get(Field.ASLEEP) > 0)):
        f.ring(parts - 1)
    with f.when((alone > 1) & (f.get(Field.RESTING) > 0)):
        f.ring(parts - 1)
    f.set(Field.BEGUN, f.now())
    f.give()


def _write_end(f: Function) -> None:
    me = member(f)
    depth = f.load(me, Member.DEPTH)
    with f.when(depth > 0):
        f.store(depth - 1, me, Member.DEPTH)
        f.give()
    f.team = f.load(me, Member.TEAM)
    mine = f.local(1)
    with f.forever() as loop:
        ticket = f.get(Field.TICKET)
        with f.when(_taken(ticket) >= _parts(ticket)):
            loop.leave()
        with f.when(f.replace(Field.TICKET, ticket, ticket + 1)):
            f.store(_taken(ticket), me, Member.PART)
            f.call_at(f.get(Field.WORK), f.get(Field.ARGUMENT))
            f.store(f.load(mine) + 1, mine)
    helped = f.load(me, Member.PARTS) - f.load(mine)
    end = f.now()
    with f.when(helped > 0):
        f.wait_until(
            Field.DONE, lambda done: f.equal(done, helped), Field.WAITING, _patience(f, STATE_WAIT)
        )
        with f.when(f.get(Field.CALLED) > 0):
            _learn(f, end)
    take_member(f, 0)
    f.set(Field.BUSY, 0)
    f.give()


def _patience(f: Function, ticks: int) -> Word:
    """Return the number of ticks to spin before sleeping."""
    patience = f.local(ticks)
    with f.when(f.get(Field.LEVEL) > 0):
        f.store(ticks >> BUSY_SHIFT, patience)
    return f.load(patience)


def _learn(f: Function, end: Word) -> None:
    """Let late helpers sleep over some regions, the more regions the more often they were late."""
    waited, own = f.now() - end, end - f.get(Field.BEGUN)
    level = f.get(Field.LEVEL)
    on_time = f.local(1)
    with f.when((waited > LATE) & (waited > own)):
        f.store(0, on_time)
        f.set(Field.GOOD, 0)
        with f.when(level < LEVELS):
            f.set(Field.LEVEL, level + 1)
        f.set(Field.ALONE, f.doubled(ALONE_AT_FIRST, level))
    with f.when((f.load(on_time) > 0) & (level > 0)):
        good = f.add(Field.GOOD, 1)
        with f.when(good + 1 >= GOOD_ENOUGH):
            f.set(Field.LEVEL, level - 1)
            f.set(Field.GOOD, 0)


def _write_helper(f: Function) -> None:
    (f.team,) = f.arguments
    me = f.local(*[0] * (Member.END // 8))
    f.store(f.team, me, Member.TEAM)
    take_member(f, me)
    unfinished, awake_until, rounds = f.local(-1), f.local(0), f.local(0)
    with f.forever() as loop:
        ticket, alone = f.get(Field.TICKET), f.get(Field.ALONE)
        with f.when(_open(ticket)):
            for may in (f.equal(alone, 0), f.equal(ticket >> 32, f.load(unfinished))):
                with f.when(may):
                    with f.when(f.replace(Field.TICKET, ticket, ticket + 1)):
                        _help(f, me, ticket)
                        f.store(f.now() + _patience(f, SPIN), awake_until)
                    loop.repeat()
        with f.when(f.equal(alone, 0) & (f.now() < f.load(awake_until))):
            f.pause()
            loop.repeat()
        _rest(f, unfinished, rounds)
        f.store(f.now() + _patience(f, SPIN), awake_until)
    f.give()  # never


def _help(f: Function, me: Word, ticket: Word) -> None:
    f.store(_taken(ticket), me, Member.PART)
    f.store(_parts(ticket), me, Member.PARTS)
    f.store(0, me, Member.DEPTH)
    f.call_at(f.get(Field.WORK), f.get(Field.ARGUMENT))
    f.add(Field.DONE, 1)
    with f.when(f.get(Field.WAITING) > 0):
        f.wake(Field.DONE, 1)


def _rest(f: Function, unfinished: Word, rounds: Word) -> None:
    """Sleep until a region may have begun.

    A leader writes the ticket first and then reads the number of sleepers. A helper therefore
    counts itself as asleep first and then reads the ticket.
    """
    bell = f.get(Field.BELL)
    f.add(Field.ASLEEP, 1)
    ticket, alone = f.get(Field.TICKET), f.get(Field.ALONE)
    nap = f.local(0)
    with f.when((alone > 0) & (f.load(rounds) < LONG_ROUNDS)):
        f.store(1, nap)
        f.store(-1, unfinished)
        with f.when(_open(ticket)):
            f.store(ticket >> 32, unfinished)
        f.sleep(Field.BELL, bell, NAP)
        f.store(f.load(rounds) + 1, rounds)
        with f.when(f.unequal(f.get(Field.TICKET), ticket)):
            f.store(0, rounds)
    with f.when(f.equal(f.load(nap), 0)):
        f.add(Field.RESTING, 1)
        ticket = f.get(Field.TICKET)
        with f.when(_taken(ticket) >= _parts(ticket)):
            f.sleep(Field.BELL, bell)
        f.add(Field.RESTING, -1)
        f.store(0, rounds)
        f.store(-1, unfinished)
    f.add(Field.ASLEEP, -1)
