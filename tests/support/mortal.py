"""Threads in the place of processes of which some die, and the others notice."""

import threading
from dataclasses import dataclass, field

from demitasse.errors import LostProcessError, ParallelError
from demitasse.parallel.threads import group


class Death(BaseException):
    """Ends a thread as a kill ends a process: nobody is told."""


@dataclass
class Company:
    """All threads, and who of them is alive.

    Attributes:
        alive: Their numbers at the beginning.
        groups: Those that have met so far, by the numbers of their members.
    """

    alive: list[int]
    groups: dict[tuple[int, ...], list] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def place(self, number):
        """Return a member's communicator among those that are alive now."""
        with self.turn:
            members = tuple(self.alive)
            if members not in self.groups:
                self.groups[members] = group(len(members), 60)
            return self.groups[members][members.index(number)]


class Mortal:
    """The communicator of a thread that may die.

    Args:
        company: All of them.
        number: Its number at the beginning.
    """

    name, in_threads, local_rank, deadline = "threads", True, 0, 60

    def __init__(self, company, number):
        self.company, self.number = company, number
        self._one = company.place(number)

    @property
    def rank(self):
        return self._one.rank

    @property
    def size(self):
        return self._one.size

    def die(self):
        """End this thread; the others find out when they next talk to each other."""
        with self.company.turn:
            self.company.alive.remove(self.number)
        self._one.abort(1)
        raise Death

    def shrink(self):
        before = self.size
        self._one.abort(1)
        self._one = self.company.place(self.number)
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
