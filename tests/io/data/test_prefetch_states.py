"""A layer that reads ahead, after any sequence of passes, moves, closings, errors and interrupts.

``nox -s fuzz`` tries many more sequences.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from expect_error import expect_error
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from interruptions import Interrupt

from demitasse import Blob
from demitasse.errors import DataError
from demitasse.io.proto import LayerParameter
from demitasse.layers.context import LayerContext
from demitasse.layers.data_layers.base import EpochDataLayer

SOON = 60  # seconds that anything may take before the test fails
NAME = "prefetch of numbers"

positions = st.integers(0, 20)


class Numbers:
    """Fills batches with the numbers from a position on; cannot fill one of them."""

    def __init__(self, position, bad, opened):
        self.position, self.bad = position, bad
        self.opened = opened
        opened.append(self)

    def fill(self, batch):
        assert self in self.opened, "filled after it was closed"
        if self.position == self.bad:
            message = f"no {self.bad}"
            raise DataError(message)
        batch.array(0, (2,))[...] = self.position
        self.position += 1
        batch.position = self.position

    def close(self):
        self.opened.remove(self)  # an error if it is closed twice


class Reader(EpochDataLayer):
    """A layer whose tops are the numbers of its batches."""

    bad = -1

    def setup(self, bottom, top):
        self.opened = []

    def open_source(self, position):
        return Numbers(position, self.bad, self.opened)


class Reading(RuleBasedStateMachine):
    """One layer, run as a net runs it."""

    @initialize(ahead=st.integers(1, 4))
    def begin(self, ahead):
        param = LayerParameter(name="numbers")
        param.data_param.prefetch = ahead
        self.layer, self.top = Reader(param, "TRAIN", LayerContext()), [Blob((2,), device="numpy")]
        self.layer.setup([], self.top)
        self.position, self.pool = 0, ThreadPoolExecutor(1, "consumer")

    def teardown(self):
        if not hasattr(self, "layer"):
            return
        self.soon(self.layer.close)
        self.pool.shutdown()
        assert self.layer.opened == []
        assert not [one for one in threading.enumerate() if one.name == NAME]

    def soon(self, act):
        return self.pool.submit(act).result(SOON)

    def forward(self):
        take_back = self.layer.savepoint()
        try:
            self.layer.forward([], self.top)
        except BaseException:
            take_back()
            raise

    def check(self):
        np.testing.assert_array_equal(self.top[0].cpu_data(), [self.position] * 2)
        self.position += 1
        assert self.layer.state() == {"position": self.position}

    @rule()
    def take(self):
        if self.position != self.layer.bad:
            self.soon(self.forward)
            self.check()
            return
        for _ in range(2):
            with expect_error(DataError, mentions=f"no {self.layer.bad}"):
                self.soon(self.forward)

    @rule(count=st.integers(2, 6))
    def take_and_go_back(self, count):
        before = self.position
        take_back = self.layer.savepoint()
        for _ in range(count):
            self.take()
        self.soon(take_back)
        self.position = before

    @rule(at=st.integers(1, 120), error=st.sampled_from([KeyboardInterrupt, MemoryError]))
    def be_interrupted(self, at, error):
        def cut_short():
            try:
                with Interrupt(at, error):
                    self.forward()
            except (error, DataError):
                return False
            return True

        if self.soon(cut_short):
            self.check()

    @rule(position=positions)
    def go_to(self, position):
        self.soon(lambda: self.layer.set_state({"position": position}))
        self.position = position

    @rule()
    def close(self):
        self.soon(self.layer.close)

    @rule(position=positions)
    def break_a_record(self, position):
        self.layer.bad = position
        self.soon(self.layer.close)  # opened again, it has that record


TestReading = Reading.TestCase
TestReading.settings = settings(stateful_step_count=15)


def test_nothing_stays_open_wherever_reading_is_cut_short_as_it_begins():
    for at in range(1, 60):
        reading = Reading()
        reading.begin(ahead=1)

        reading.be_interrupted(at, KeyboardInterrupt)

        reading.teardown()
