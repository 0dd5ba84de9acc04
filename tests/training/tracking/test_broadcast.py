"""Loggers of a run: what all are told, and what happens when one fails."""

import logging

from demitasse.training.tracking import LoggerGroup


class Kept:
    """Keeps what it is told; fails as often as it is asked to."""

    def __init__(self, failures=0):
        self.told, self.failures = [], failures

    def take(self, *what):
        self.told.append(what)
        if self.failures:
            self.failures -= 1
            message = "no room"
            raise OSError(message)

    def scalars(self, iteration, values):
        self.take(iteration, dict(values))

    def event(self, iteration, kind, facts):
        self.take(iteration, kind, dict(facts))

    def close(self):
        self.take("close")


def test_begin_comes_before_the_first_numbers():
    kept = Kept()
    told = LoggerGroup(lambda: [kept], lambda: {"net": "small"})

    told.scalars(3, {"loss": 1.0})
    told.scalars(4, {"loss": 2.0})

    assert kept.told == [(3, "begin", {"net": "small"}), (3, {"loss": 1.0}), (4, {"loss": 2.0})]


def test_begin_comes_again_where_the_run_goes_on_from_somewhere_else():
    kept = Kept()
    told = LoggerGroup(lambda: [kept], dict)
    told.scalars(9, {})

    told.begin()
    told.scalars(5, {})

    assert [what[1] for what in kept.told] == ["begin", {}, "begin", {}]


def test_a_logger_in_place_of_a_deleted_one_is_a_new_logger():
    loggers = [Kept()]
    told = LoggerGroup(lambda: loggers, dict)
    told.scalars(4, {})

    loggers.clear()
    loggers.append(Kept())  # Python may reuse the address, and so the id
    told.scalars(5, {"loss": 1.0})

    assert loggers[0].told == [(5, "begin", {}), (5, {"loss": 1.0})]


def test_a_logger_that_fails_is_told_of_once_and_does_not_end_the_run(caplog):
    failing, kept = Kept(failures=2), Kept()
    told = LoggerGroup(lambda: [failing, kept], dict)

    for iteration in range(3):
        told.scalars(iteration, {"loss": 1.0})

    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "no room" in errors[0].getMessage()
    assert len(kept.told) == len(failing.told) == 4


def test_a_logger_that_goes_on_failing_is_left_alone():
    failing = Kept(failures=99)
    told = LoggerGroup(lambda: [failing], dict)

    for iteration in range(10):
        told.scalars(iteration, {})
    told.close()

    assert len(failing.told) == 3


def test_facts_that_cannot_be_found_do_not_end_the_run(caplog):
    told = LoggerGroup(lambda: [Kept()], lambda: {}["missing"])

    told.scalars(0, {})

    assert "KeyError" in caplog.text
