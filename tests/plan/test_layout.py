"""Layouts of a plan follow from its layers and their shapes, not from what was prepared before."""

import numpy as np
import pytest
from lowered import conv, layer, net

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.arguments import InputArg, rounded_output
from demitasse.backends.cpu.engine import engine
from demitasse.backends.cpu.layout import innermost, rounded
from demitasse.backends.step import LayoutUse
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.layout import LayoutAssignment
from demitasse.plan.report import report

READY = not slow_reason()
WIDE = pytest.mark.skipif(
    not READY or engine().tuning.width < 16, reason="blocks are offered to readers with AVX-512"
)

GATED = net(
    conv(32),
    layer("r", "ReLU", "c", "c"),
    conv(32, bottom="c", name="d"),
    layer("p", "Pooling", "c", "p", "pooling_param { kernel_size: 3 stride: 1 pad: 1 }"),
    layer("j", "Concat", "d p", "j"),
    conv(16, "kernel_size: 1", "j", "e"),
    layer("b", "BatchNorm", "e", "e"),
    layer("n", "LRN", "e", "n"),
    conv(16, "kernel_size: 3 group: 4 pad: 1", "n", "f"),
    layer("s", "Eltwise", "e f", "s"),
)


def made(text, phase="TRAIN"):
    found = Net(parse_text(text, NetParameter), phase, device="cpu", seed=1)
    blob = found.blobs["x"]
    blob.data[...] = np.random.default_rng(1).normal(size=blob.shape)
    return found


def layouts(planned):
    """The layout of each blob's data and gradient, and the code of each layer."""
    written = {
        name: [str(planned.plan.layouts.written(m, blob.shape)) for m in memories(blob)]
        for name, blob in planned.blobs.items()
    }
    return written, [(one.name, one.code, one.backward_code) for one in report(planned.plan)]


def memories(blob):
    return blob.data_memory, blob.diff_memory


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_another_shape_before_changes_no_layout(phase):
    shape, other = (2, 3, 7, 6), (5, 3, 12, 9)
    changed = made(GATED, phase)
    changed.blobs["x"].reshape(*other)
    changed.forward()
    changed.blobs["x"].reshape(*shape)

    changed.reshape()

    fresh = made(GATED, phase)
    fresh.reshape()
    assert layouts(changed) == layouts(fresh)


def test_parts_before_the_whole_change_no_layout():
    parts, whole = made(GATED, "TEST"), made(GATED, "TEST")
    parts.forward(end="c")
    parts.forward(start="d", end="e")

    parts.forward()

    whole.forward()
    assert layouts(parts) == layouts(whole)


class Stated:
    """A Step with these layouts."""

    def __init__(self, *uses):
        self.uses = uses

    def layout_uses(self, *, backward):
        return () if backward else self.uses


class StatedBackward(Stated):
    """The same of a backward pass."""

    def layout_uses(self, *, backward):
        return self.uses if backward else ()


class Order:
    """A layout of a shape."""

    def __init__(self, *shape):
        self.shape, self.size = shape, 1


def blob():
    return Blob((2, 3), device=Device("cpu"))


def test_the_last_writer_counts_for_shapes_of_its_own():
    one, first, last = blob(), Order(2, 3), Order(2, 3)
    assigned = LayoutAssignment()

    for order in (first, last):
        assigned.add(Stated(LayoutUse("written", one, order)))

    assert assigned.written(one.data_memory, (2, 3)) is last
    assert assigned.written(one.data_memory, (3, 2)) is None
    assert assigned.written(one.data_memory) is last
    assert assigned.written(one.diff_memory, (2, 3)) is None


def test_the_last_reader_of_each_blob_counts():
    one, other, first, last = blob(), blob(), Order(2, 3), Order(2, 3)
    other.share_data(one)
    assigned = LayoutAssignment()

    for reader, order in ((one, first), (other, first), (one, last)):
        assigned.add(Stated(LayoutUse("preferred", reader, order)))

    assert assigned.preferred(one.data_memory) == (first, last)


def test_readers_agree_if_all_prefer_the_same():
    one, other, order = blob(), blob(), Order(2, 3)
    other.share_data(one)

    def agreed(*uses):
        assigned = LayoutAssignment()
        for use in uses:
            assigned.add(Stated(*use))
        return assigned.agreed(one.data_memory)

    prefers, neither = LayoutUse("preferred", one, order), LayoutUse("preferred", other, None)
    assert agreed() is None
    assert agreed([prefers]) is order
    assert agreed([prefers], [neither]) is None
    assert agreed([prefers], [LayoutUse("preferred", other, Order(2, 3))]) is None
    assert agreed([LayoutUse("preferred", one, Order(2, 3))], [prefers]) is order
    assert agreed([prefers], [neither, LayoutUse("written", other, order)]) is order  # in place


def test_a_backward_pass_that_reads_a_blob_changes_no_preference():
    one, order = blob(), Order(2, 3)
    assigned = LayoutAssignment()

    assigned.add(Stated(LayoutUse("preferred", one, order)))
    assigned.add(StatedBackward(LayoutUse("preferred", one, None)), backward=True)

    assert assigned.agreed(one.data_memory) is order
    assert assigned.preferred(one.data_memory) == (order,)


def test_a_blob_that_is_read_is_overwritten_as_it_lies():
    one, assigned = Blob((2, 32, 5, 7), device=Device("cpu")), LayoutAssignment()
    layout = innermost(one.shape, 1)
    best = rounded(layout)
    assigned.add(Stated(LayoutUse("preferred", one, best)))

    assert rounded_output(assigned, one, layout).layout is best
    for found in (layout, best):
        read = [InputArg(one, found)]
        assert rounded_output(assigned, one, layout, read=read).layout is found
