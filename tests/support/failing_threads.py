"""Threads in the place of processes of which some die, and the others notice."""

import threading
from dataclasses import dataclass, field

from demitasse.errors import LostProcessError, ParallelError
from demitasse.training.distributed.threads import connected_threads


class Death(BaseException):
    """Ends a thread as a kill ends a process: nobody is told."""


@dataclass
class Company:
    """All threads, and who of them is alive.

    Attributes:
        alive: Their numbers at the beginning.
        meeting: How often they have met anew.
        groups: Those that have met so far, by their meeting and the numbers of their members.
    """

    alive: list[int]
    meeting: int = 0
    groups: dict[tuple[int, ...], list] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def place(self, number, left=-1):
        """Return the last meeting, and a member's communicator there.

        Args:
            number: The member.
            left: The meeting that it has left; if that is the last one, another begins.
        """
        with self.turn:
            self.meeting += left == self.meeting
            key = (self.meeting, *self.alive)
            if key not in self.groups:
                self.groups[key] = connected_threads(len(self.alive), 60)
            return self.meeting, self.groups[key][self.alive.index(number)]

    def lose(self, number):
        """Let a member be dead, and the others notice."""
        with self.turn:
            self.alive.remove(number)
            self.meeting += 1
            for members in self.groups.values():
                members[0].abort(1)


class Mortal:
    """The communicator of a thread that may die.

    Args:
        company: All of them.
        number: Its number at the beginning.
    """

    name, in_threads, local_rank, timeout = "threads", True, 0, 60

    def __init__(self, company, number):
        self.company, self.number = company, number
        self._meeting, self._one = company.place(number)

    @property
    def rank(self):
        return self._one.rank

    @property
    def size(self):
        return self._one.size

    def die(self):
        """End this thread; the others find out when they next talk to each other."""
        self.company.lose(self.number)
        raise Death

    def shrink(self):
        before = self.size
        self._one.abort(1)
        self._meeting, self._one = self.company.place(self.number, self._meeting)
        return before - self.size

    def __getattr__(self, name):
        method = getattr(self._one, name)

        def noticing(*args, **kwargs):
            try:
                return method(*args, **kwargs)
            except ParallelError as error:
                raise LostProcessError(str(error)) from error

        return noticing


def company(size):
    """Return the communicators of so many threads."""
    everybody = Company(list(range(size)))
    return [Mortal(everybody, number) for number in range(size)]
