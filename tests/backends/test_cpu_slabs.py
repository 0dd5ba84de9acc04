"""Large parameters that move to a layout of a kernel's by slabs, and leave no copy behind."""

import signal

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.arrays import LARGE_PAGE, aligned, give_back
from demitasse.backends.cpu import engine as engine_module
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.engine import engine
from demitasse.backends.cpu.layout import blocked, innermost, plain, slabs
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

ROWS, COLUMNS = 160, 200
BLOCKS = (2, 4, 8, 16, 24, 32, 48, 64)


def layouts(rows=ROWS):
    shape = rows, COLUMNS
    found = [blocked(shape, axis, block) for axis in (0, 1) for block in BLOCKS]
    return [plain(shape), innermost(shape, 0), *found]


@pytest.mark.parametrize("size", [1, 5000, 16 * COLUMNS, 50 * COLUMNS, ROWS * COLUMNS])
@pytest.mark.parametrize("rows", [ROWS, ROWS - 3], ids=["whole blocks", "a block with padding"])
def test_slabs_hold_what_the_whole_holds(monkeypatch, size, rows):
    monkeypatch.setattr(engine_module, "SLAB", size)
    rng, cut = np.random.default_rng(0), 0
    host = rng.normal(size=rows * COLUMNS).astype(np.float32)
    for layout in layouts(rows):
        whole, moved = aligned(layout.size), aligned(layout.size)
        moved[...] = np.nan
        engine().reorder(host, plain(layout.shape), whole, layout)

        engine().move(host.copy(), moved, layout)

        np.testing.assert_array_equal(moved, whole)
        parts = slabs(layout, size)
        assert sum(part.size for part in parts) == layout.size
        cut += len(parts) > 1 and (rows == ROWS or layout.size > host.size)

    assert cut or size == ROWS * COLUMNS


def test_the_memory_of_a_part_is_given_back_and_of_nothing_else():
    array = aligned(4 * LARGE_PAGE // 4)
    array[...] = 7
    part = array[100 : 100 + 3 * LARGE_PAGE // 4]

    give_back(part)

    untouched = np.concatenate([array[:100], array[100 + part.size :]])
    assert (untouched == 7).all()
    assert np.isin(part, (0, 7)).all()


@pytest.mark.parametrize("array", [np.full(9, 7.0), np.frombuffer(b"7" * 16, np.uint8)])
def test_what_is_no_large_array_of_ours_stays(array):
    before = array.copy()

    give_back(array)
    give_back(array[:0])

    np.testing.assert_array_equal(array, before)


def test_weights_that_have_moved_are_read_again_as_they_were(monkeypatch):
    monkeypatch.setattr(engine_module, "SLAB", 1 << 14)
    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 1600 } } } '
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { '
        'num_output: 1024 weight_filler { type: "gaussian" std: 1 } } }'
    )
    net = Net(parse_text(text, NetParameter), "TEST", device="cpu", seed=3)
    portable = Net(parse_text(text, NetParameter), "TEST", device="numpy", seed=3)
    x = np.random.default_rng(1).normal(size=(3, 1600)).astype(np.float32)
    weights = portable.params["ip"][0].data.copy()

    found = net.predict(x)["ip"]

    memory = net.params["ip"][0].data_memory
    assert memory.host_side.array is None or memory.layout is None
    np.testing.assert_allclose(found, portable.predict(x)["ip"], rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(net.params["ip"][0].data, weights)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_waits_until_all_of_a_parameter_has_moved(monkeypatch):
    monkeypatch.setattr(engine_module, "SLAB", 1 << 10)
    layout = max(layouts(), key=lambda one: len(slabs(one, 1 << 10)))
    host = np.random.default_rng(0).normal(size=ROWS * COLUMNS).astype(np.float32)
    whole, moved = aligned(layout.size), aligned(layout.size)
    engine().reorder(host, plain(layout.shape), whole, layout)
    # in this thread at once: sent to the process, it might come to another one, and later
    monkeypatch.setattr(engine_module, "give_back", lambda part: signal.raise_signal(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        engine().move(host.copy(), moved, layout)

    np.testing.assert_array_equal(moved, whole)
