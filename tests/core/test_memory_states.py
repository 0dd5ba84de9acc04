"""Blobs and their memories after any sequence of reads, writes, views, moves and failures.

A plain array says what a blob must hold. ``nox -s fuzz`` tries many more sequences.
"""

from contextlib import suppress

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from demitasse import Blob
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.layout import channels_last
from demitasse.core.device import Device
from demitasse.memory import Head
from demitasse.memory.sides import DeviceSide

devices = st.sampled_from(["numpy", "readonly", "cpu", "strict:device1", "strict:device1"])
SHAPE = (2, 3, 1, 2)

numbers = st.integers(-100, 100)
sizes = st.sampled_from([0, 1, 5, 12, 12, 20])


class Failure(BaseException):
    """What cuts a copy short."""


class Plain:
    """What a blob's data must be.

    Attributes:
        values: Of the whole memory.
        known: Where they are: what will be overwritten completely is undefined beyond the shape.
    """

    def __init__(self, size):
        self.values = np.zeros(size, np.float32)
        self.known = np.ones(size, bool)

    def write(self, values, *, discard=False):
        if discard:
            self.known[:] = False
        self.values[: len(values)], self.known[: len(values)] = values, True


class Blobs(RuleBasedStateMachine):
    """Two blobs, and the copies that moves between host and device make.

    Attributes:
        blobs: The blobs.
        plain: For each of them, what its data must be; one object where they share a memory.
    """

    @initialize(device=devices, size=sizes)
    def begin(self, device, size):
        self.device, self.fails, self.views = Device(device), False, {}
        self.blobs = [Blob((size,), device=device) for _ in range(2)]
        self.plain = [Plain(size) for _ in range(2)]
        self.kept = {name: getattr(DeviceSide, name) for name in ("copy_to", "copy_from")}
        for name, method in self.kept.items():
            setattr(DeviceSide, name, self.failing(method))

    def teardown(self):
        for name, method in getattr(self, "kept", {}).items():
            setattr(DeviceSide, name, method)

    def failing(self, method):
        def copy(side, host):
            if self.fails:
                raise Failure
            return method(side, host)

        return copy

    # -- what is done --------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), value=numbers)
    def write_on_the_host(self, which, value):
        blob, values = self.some(which, value)

        blob.mutable_cpu_data()[...] = values

        self.plain[which].write(values)

    @rule(which=st.integers(0, 1), value=numbers)
    def write_on_the_device(self, which, value):
        blob, values = self.some(which, value)
        discard = not self.device.shares_host or blob.data_memory.cleared

        blob.write(self.device.backend.asarray(values))

        self.written(which, values, discard=discard)

    @rule(which=st.integers(0, 1), value=numbers)
    def change_on_the_device(self, which, value):
        blob, values = self.some(which, value)

        blob.mutable_gpu_data()[...] = self.device.backend.asarray(values)

        self.written(which, values)

    @rule(which=st.integers(0, 1), value=numbers)
    def write_through_a_view(self, which, value):
        blob, values = self.some(which, value)
        if which not in self.views:
            self.views[which] = blob.data

        self.views[which][...] = values
        blob.data_memory.before_pass()

        self.plain[which].write(values)

    @rule(which=st.integers(0, 1))
    def let_go_of_a_view(self, which):
        self.views.pop(which, None)

    @rule(which=st.integers(0, 1), value=numbers)
    def adopt(self, which, value):
        blob, values = self.some(which, value)
        before = blob.data_memory
        self.views.pop(which, None)

        if self.device.shares_host or value % 2:
            blob.set_cpu_data(values)
        else:
            blob.set_gpu_data(self.device.backend.asarray(values))

        if blob.data_memory is before:
            self.views = {}
        else:
            self.plain[which] = Plain(blob.count)
        self.plain[which].write(values)

    @rule(which=st.integers(0, 1))
    def clear(self, which):
        self.blobs[which].data_memory.clear()

        self.plain[which].write(np.zeros_like(self.plain[which].values))

    @rule(which=st.integers(0, 1), size=sizes)
    def reshape(self, which, size):
        blob = self.blobs[which]
        before = blob.data_memory, blob.data_memory.size

        blob.reshape(size)

        self.views.pop(which, None)
        if (blob.data_memory, blob.data_memory.size) != before:
            self.plain[which] = Plain(blob.data_memory.size)

    @rule(which=st.integers(0, 1))
    def share(self, which):
        one, other = self.blobs[which], self.blobs[1 - which]
        if one.count == other.count:
            one.share_data(other)
            self.views.pop(which, None)
            self.plain[which] = self.plain[1 - which]

    @rule(device=devices)
    def move(self, device):
        for blob in self.blobs:
            blob.data_memory.before_pass()
        self.device = Device(device)
        for blob in self.blobs:
            blob.to(self.device)

    @rule(which=st.integers(0, 1))
    def push(self, which):
        memory = self.blobs[which].data_memory
        if memory.head is Head.HEAD_AT_CPU:
            memory.async_push()

    @precondition(lambda self: not self.device.shares_host)
    @rule(which=st.integers(0, 1), write=st.booleans(), there=st.booleans())
    def fail_to_copy(self, which, write, there):
        blob = self.blobs[which]
        memory = blob.data_memory
        act = (memory.cpu_data, memory.gpu_data, memory.mutable_cpu_data, memory.mutable_gpu_data)
        self.fails = True
        with suppress(Failure):
            act[there + 2 * write]()
        self.fails = False
        self.check(which, blob.cpu_data())

    @precondition(lambda self: str(self.device) == "cpu" and not slow_reason())
    @rule(
        which=st.integers(0, 1),
        value=numbers,
        how=st.sampled_from(["read", "read alone", "write", "swap"]),
    )
    def use_the_private_side(self, which, value, how):
        blob = self.blobs[which]
        if blob.data_memory.size != 12 or blob.data_memory.viewed:
            return
        memory, plain = blob.data_memory, self.plain[which]
        layout = channels_last(SHAPE, 16)
        values = (np.arange(12) + value).astype(np.float32)
        if how.startswith("read"):
            side = memory.private_data(layout, alone=how == "read alone")
            host = np.zeros(12, np.float32)
            self.device.backend.unpack(side, layout, host)
            np.testing.assert_array_equal(host[plain.known], plain.values[plain.known])
            return
        if how == "write":
            side = memory.mutable_private_data(layout)
        else:
            side = self.device.backend.empty_private(layout.size)
            memory.exchange_private(layout, side)
        self.device.backend.pack(values, layout, side)
        plain.write(values)

    # -- what must be --------------------------------------------------------------------------

    @rule(which=st.integers(0, 1))
    def read_on_the_host(self, which):
        self.check(which, self.blobs[which].cpu_data())

    @rule(which=st.integers(0, 1))
    def read_on_the_device(self, which):
        host = self.device.backend.to_host(self.blobs[which].read())
        self.check(which, np.asarray(host))

    # -- help ----------------------------------------------------------------------------------

    def some(self, which, value):
        blob = self.blobs[which]
        return blob, (np.arange(blob.count) + value).astype(np.float32)

    def written(self, which, values, *, discard=False):
        """The device side was written; whoever holds a view is shown it."""
        self.plain[which].write(values, discard=discard)
        for blob in self.blobs:
            blob.data_memory.after_pass()
        for number, view in self.views.items():
            self.check(number, view)

    def check(self, which, found):
        plain = self.plain[which]
        part = slice(0, found.size)
        known = plain.known[part]
        np.testing.assert_array_equal(found.reshape(-1)[known], plain.values[part][known])


TestBlobs = Blobs.TestCase
TestBlobs.settings = settings(stateful_step_count=40)
