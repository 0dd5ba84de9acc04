"""Copies of blobs between host and device in the middle of a pass: allowed, logged or refused."""

import logging

import numpy as np
import pytest
from expect_error import expect_error

import demitasse as dm
from demitasse.core.config import settings
from demitasse.errors import ErrorCode
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import transfers

FAR = "strict:device1"
NET = """
    name: "n" force_backward: true
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
            inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
    layer { name: "mine" type: "MINE" bottom: "ip" top: "mine" }
    layer { name: "sum" type: "Reduction" bottom: "mine" top: "sum" loss_weight: 1 }
"""


@dm.register_layer("OnHostInTests")
class OnHost(dm.Layer):
    """Takes its bottom to the host, and brings its top from there."""

    def reshape(self, bottom, top):
        top[0].reshape_like(bottom[0])

    def forward(self, bottom, top):
        top[0].mutable_cpu_data()[...] = 2 * bottom[0].cpu_data()

    def backward(self, top, propagate_down, bottom):
        bottom[0].mutable_cpu_diff()[...] = 2 * top[0].cpu_diff()


def made(kind="TanH", device=FAR):
    net = dm.Net(
        parse_text(NET.replace("MINE", kind), NetParameter), "TRAIN", device=device, seed=1
    )
    net.blobs["x"].data[...] = 0.5
    return net


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "demitasse.memory.transfers"]


class TestError:
    def test_a_pass_on_the_device_is_none_of_its_business(self, backend):
        net = made(device=backend)

        with dm.transfer_guard("raise"):
            net.forward_backward()
            net.blobs["x"].data[...] = 1.5  # new on the host before the pass
            net.forward_backward()

        assert np.isfinite(net.blobs["ip"].diff).all()  # and read after it

    def test_a_layer_on_the_host_is_named(self):
        net = made("OnHostInTests")

        names = ["blob 'ip'", "32 bytes", "strict:device1", "transfer_guard('allow')"]
        with (
            dm.transfer_guard("raise"),
            expect_error(
                dm.DeviceError,
                ErrorCode.CONFLICT,
                place="layer 'mine' (OnHostInTests): forward",
                mentions=names,
                memory="blob 'ip'",
            ),
        ):
            net.forward()

    def test_its_gradient_too(self):
        net = made("OnHostInTests")
        net.forward()

        with (
            dm.transfer_guard("raise"),
            expect_error(
                dm.DeviceError, ErrorCode.CONFLICT, memory="the gradient of blob 'mine'"
            ) as caught,
        ):
            net.backward()

        assert caught.value.place.endswith("backward")

    def test_on_devices_that_work_on_the_host_nothing_is_copied(self):
        net = made("OnHostInTests", device="numpy")

        with dm.transfer_guard("raise"):
            net.forward_backward()

    def test_data_that_layers_bring_in_has_to_be_copied(self):
        text = NET.replace("MINE", "TanH").replace(
            'type: "Input" top: "x" input_param', 'type: "DummyData" top: "x" dummy_data_param'
        )
        net = dm.Net(parse_text(text, NetParameter), "TRAIN", device=FAR)

        with dm.transfer_guard("raise"):
            net.forward()
            net.forward()

    def test_a_callback_that_looks_at_a_blob_is_named(self):
        net = made()
        net.after_forward.append(lambda index: net.blobs["ip"].data.sum() if index == 1 else 0)

        with (
            dm.transfer_guard("raise"),
            expect_error(
                dm.DeviceError,
                ErrorCode.CONFLICT,
                place="a callback at layer 'ip'",
                memory="blob 'ip'",
            ),
        ):
            net.forward()

    def test_a_live_view_that_is_held_is_told_of(self):
        net = made()
        view = net.blobs["ip"].data

        with (
            dm.transfer_guard("raise"),
            expect_error(
                dm.DeviceError,
                ErrorCode.CONFLICT,
                place="after the pass",
                mentions=[".data", ".diff"],
                memory="blob 'ip'",
            ),
        ):
            net.forward()

        assert view.shape == (2, 4)

    def test_what_a_refused_pass_would_have_changed_is_taken_back(self):
        net = made("OnHostInTests")
        passes = net.passes

        with dm.transfer_guard("raise"), pytest.raises(dm.DeviceError):
            net.forward()

        assert net.passes == passes
        assert net.forward() == made("OnHostInTests").forward()


class TestLog:
    def test_each_layer_and_blob_is_told_once(self, caplog):
        net = made("OnHostInTests")

        with dm.transfer_guard("warn"), caplog.at_level(logging.WARNING):
            net.forward()
            net.forward()

        said = warnings(caplog)
        assert len(said) == 2
        assert said[0].startswith("layer 'mine' (OnHostInTests), forward: blob 'ip' (32 bytes)")
        assert said[1].startswith("layer 'sum' (Reduction), forward: blob 'mine' (32 bytes)")

    def test_nothing_else_changes(self):
        net = made("OnHostInTests")
        transfers.reset()
        expected = net.forward()
        counts = transfers.to_host, transfers.to_device

        other = made("OnHostInTests")
        transfers.reset()
        with dm.transfer_guard("warn"):
            assert other.forward() == expected

        assert (transfers.to_host, transfers.to_device) == counts


class TestWhoSaysSo:
    def test_by_default_copies_are_allowed(self, caplog):
        made("OnHostInTests").forward()

        assert warnings(caplog) == []

    def test_the_setting(self):
        net = made("OnHostInTests")

        with (
            settings.override(transfers="raise"),
            expect_error(dm.DeviceError, ErrorCode.CONFLICT, memory="blob 'ip'"),
        ):
            net.forward()

    def test_the_innermost_guard_is_stronger_than_the_setting(self):
        net = made("OnHostInTests")

        with (
            settings.override(transfers="raise"),
            dm.transfer_guard("raise"),
            dm.transfer_guard("allow"),
        ):
            net.forward()

    def test_a_mode_that_there_is_not(self):
        with expect_error(
            dm.ConfigError, ErrorCode.UNKNOWN, mentions="allow, warn, raise", got="never"
        ):
            dm.transfer_guard("never").__enter__()

    def test_a_python_layer_of_caffe_works_on_the_host(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "guarded_twice.py").write_text(
            "import caffe\n"
            "class Twice(caffe.Layer):\n"
            "    def setup(self, bottom, top): pass\n"
            "    def reshape(self, bottom, top): top[0].reshape(*bottom[0].data.shape)\n"
            "    def forward(self, bottom, top): top[0].data[...] = 2 * bottom[0].data\n"
            "    def backward(self, top, down, bottom): pass\n"
        )
        text = NET.replace(
            'type: "MINE"',
            'type: "Python" python_param { module: "guarded_twice" layer: "Twice" }',
        )
        net = dm.Net(parse_text(text, NetParameter), "TEST", device=FAR)

        with (
            dm.transfer_guard("raise"),
            expect_error(
                dm.DeviceError,
                ErrorCode.CONFLICT,
                place="layer 'mine' (Python)",
                memory="blob 'ip'",
            ),
        ):
            net.forward()
