"""Of the primitives that are prepared, the library writes the code of those that run."""

import gc

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.onednn import status
from demitasse.backends.onednn.library.primitive import Description
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(not status().loaded, reason=str(status()))

NET = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 16 dim: 5 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: AVE kernel_size: 5 } }
"""

NORMED = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 16 dim: 5 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
"""


class Record:
    """Which primitives the library has written, and which it has run.

    Attributes:
        written: Handles of the former.
        ran: Handles of the latter.
    """

    def __init__(self, monkeypatch, library):
        self.written, self.ran = set(), set()
        create, execute = library.dnnl_primitive_create, library.dnnl_primitive_execute

        def note_written(handle, description):
            status = create(handle, description)
            self.written.add(handle._obj.value)
            return status

        def note_ran(handle, *rest):
            self.ran.add(handle)
            return execute(handle, *rest)

        monkeypatch.setattr(library, "dnnl_primitive_create", note_written)
        monkeypatch.setattr(library, "dnnl_primitive_execute", note_ran)


@pytest.fixture
def record(monkeypatch):
    return Record(monkeypatch, Device("cpu").backend.engine.library)


def test_what_another_primitive_takes_the_place_of_is_never_written(record):
    net = Net(parse_text(NET, NetParameter), "TEST", device="cpu")

    net.forward()

    assert record.ran
    assert record.written == record.ran


def test_gradients_are_not_written_before_a_backward_pass(record):
    net = Net(parse_text(NET, NetParameter), "TRAIN", device="cpu")
    net.forward()
    forward = set(record.written)

    net.blobs["pool"].mutable_cpu_diff()[...] = np.float32(1)
    net.backward()

    assert forward < record.written == record.ran


def descriptions():
    """Descriptions of norms and of ReLU by itself that are held."""
    gc.collect()
    held = (one for one in gc.get_objects() if isinstance(one, Description))
    return [one for one in held if one.implementation.startswith(("bnorm", "jit:uni"))]


def test_what_has_not_been_written_is_described_once_more_when_it_runs(record):
    if not Device("cpu").backend.engine.tuning.width:
        pytest.skip("below AVX2 every layer of this net runs by itself")
    before = len(descriptions())
    net = Net(parse_text(NORMED, NetParameter), "TEST", device="cpu")
    net.params["norm"][1].data[...] = net.params["norm"][2].data[...] = 1
    net.blobs["x"].data[...] = np.random.default_rng(1).normal(size=(1, 16, 5, 5))
    net.forward()
    right = net.blobs["conv"].data.copy()
    assert len(descriptions()) == before

    net.forward(end="conv")
    before = len(record.written)
    net.forward(start="norm", end="norm")
    net.forward(start="relu")

    assert len(record.written) == before + 1
    np.testing.assert_allclose(net.blobs["conv"].data, right, rtol=1e-5, atol=1e-6)
