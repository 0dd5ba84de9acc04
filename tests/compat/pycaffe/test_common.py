"""Modes, devices, seeds, phases and types."""

import json

import numpy as np
import pytest
from expect_error import expect_error, expect_warning
from google.protobuf import text_format

import demitasse.compat.pycaffe as caffe
from demitasse import settings
from demitasse.compat.pycaffe.proto import caffe_pb2
from demitasse.core import device
from demitasse.core.device import available_devices
from demitasse.errors import DeviceError

without_gpu = pytest.mark.skipif(
    any(name.startswith("cuda") for name in available_devices()), reason="there is a GPU"
)


@pytest.mark.usefixtures("folder")
def test_one_seed_gives_one_net():
    caffe.set_mode_cpu()
    caffe.set_random_seed(np.int64(5))

    one, two = (caffe.Net("net.prototxt", caffe.TEST).params["ip"][0].data for _ in range(2))

    np.testing.assert_array_equal(one, two)


@without_gpu
def test_a_gpu_that_is_not_there_is_an_error():
    caffe.set_device(1)

    with expect_error(DeviceError, mentions="cuda:1"):
        caffe.set_mode_gpu()


@without_gpu
@pytest.mark.usefixtures("folder")
def test_a_setting_replaces_a_gpu_that_is_not_there():
    device._warn_of_fallback.cache_clear()

    with settings.override(gpu_fallback="cpu"):
        with expect_warning(RuntimeWarning, mentions=["GPU", "cpu"]):
            caffe.set_mode_gpu()
        caffe.set_device(1)
        out = caffe.Net("net.prototxt", caffe.TEST).forward()

    assert out["prob"].shape == (4, 3)


def test_a_phase_is_a_number_and_a_name():
    assert (caffe.TRAIN, caffe.TEST) == (caffe_pb2.TRAIN, caffe_pb2.TEST) == (0, 1)
    assert (str(caffe.TRAIN), str(caffe.TEST)) == ("TRAIN", "TEST")
    assert json.dumps([caffe.TEST]) == "[1]"


def test_messages_take_phases():
    state = caffe_pb2.NetState(phase=caffe.TEST)
    state.phase = caffe.TRAIN

    assert text_format.MessageToString(state).strip() == "phase: TRAIN"


def test_messages_and_layer_types():
    message = caffe_pb2.NetParameter(name="n")

    assert caffe.proto.caffe_pb2.NetParameter.FromString(message.SerializeToString()) == message
    assert {"Convolution", "SoftmaxWithLoss", "Python"} <= set(caffe.layer_type_list())
