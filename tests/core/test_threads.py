"""A process that is given no more threads says so, and does nothing of what it could not begin."""

import threading

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.core.threads import Pool
from demitasse.errors import DeviceError, ErrorCode
from demitasse.io.data.databases.writing import write_database
from demitasse.io.data.threads import Threads, map_ahead
from demitasse.io.proto import NetParameter, parse_text
from demitasse.net import build

NET = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 }
        data_filler { type: "gaussian" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1
        reduction_param { operation: SUMSQ } }
"""


def expect_no_threads(**more):
    """Expect the error of a refused thread."""
    return expect_error(DeviceError, ErrorCode.LIMIT, resource="threads", **more)


@pytest.fixture
def no_threads(monkeypatch):
    """Let the system give no more threads, until it is told otherwise."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield patch


def test_a_data_layer_says_so_and_goes_on_later(tmp_path, no_threads):
    images = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    write_database(tmp_path / "db", [(image, 0) for image in images])
    text = f"""layer {{ name: "data" type: "Data" top: "x"
               data_param {{ source: "{tmp_path.as_posix()}/db" batch_size: 2 backend: LMDB }} }}"""

    with Net(parse_text(text, NetParameter), device="numpy") as net:
        with expect_no_threads(place="layer 'data'"):
            net.forward()
        no_threads.undo()
        net.forward()

        np.testing.assert_array_equal(net.blobs["x"].data, images[:2])


@pytest.mark.parametrize("run", [lambda work: Threads("some").map(work, "abc"),
                                 lambda work: list(map_ahead(work, "abc", 2))])  # fmt: skip
def test_work_on_images_says_so(run, no_threads, monkeypatch):
    monkeypatch.setattr("demitasse.io.data.threads.THREADS", 2)

    with expect_no_threads():
        run(str)


def test_work_that_could_not_be_begun_is_never_done(no_threads):
    done = []
    pool = Pool(2)

    with expect_no_threads():
        pool.submit(done.append, 1)
    no_threads.undo()

    with pytest.raises(RuntimeError):
        pool.submit(done.append, 2)
    assert done == []


def test_threads_are_used_again_when_there_are_some(no_threads, monkeypatch):
    monkeypatch.setattr("demitasse.io.data.threads.THREADS", 2)
    threads = Threads("some")
    with pytest.raises(DeviceError):
        threads.map(str, [1, 2])

    no_threads.undo()

    assert threads.map(str, [1, 2]) == ["1", "2"]
    threads.close()


def test_first_values_say_so_and_are_made_later(no_threads, monkeypatch):
    monkeypatch.setattr(build, "WORTH_THREADS", 1)
    monkeypatch.setenv("DEMITASSE_THREADS", "2")

    with Net(parse_text(NET, NetParameter), device="numpy", seed=1) as net:
        with expect_no_threads():
            net.forward()
        no_threads.undo()

        assert net.forward() > 0
