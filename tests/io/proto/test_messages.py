"""The message classes: Caffe's names, numbers and defaults, in a pool of their own."""

import copy
import pickle

import pytest
from expect_error import expect_error
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from demitasse.io import proto
from demitasse.io.proto import caffe_pb2


def number(message, field):
    return getattr(caffe_pb2, message).DESCRIPTOR.fields_by_name[field].number


@pytest.mark.parametrize(
    ("message", "field", "expected"),
    [
        ("BlobProto", "shape", 7),
        ("BlobProto", "data", 5),
        ("BlobProto", "raw_data", 12),
        ("NetParameter", "layer", 100),
        ("NetParameter", "layers", 2),
        ("LayerParameter", "blobs", 7),
        ("LayerParameter", "recurrent_param", 146),
        ("LayerParameter", "swish_param", 147),
        ("LayerParameter", "clip_param", 148),
        ("PoolingParameter", "round_mode", 13),
        ("SolverParameter", "layer_wise_reduce", 41),
        ("SolverParameter", "weights", 42),
        ("V1LayerParameter", "blob_share_mode", 1002),
        ("V0LayerParameter", "hdf5_output_param", 1001),
        ("InfogainLossParameter", "axis", 2),
    ],
)
def test_fields_have_caffes_numbers(message, field, expected):
    assert number(message, field) == expected


def test_our_own_fields_are_beyond_caffes():
    fields = caffe_pb2.SolverState.DESCRIPTOR.fields

    ours = [field.number for field in fields if field.name == "resume"]

    assert ours == [5000]


@pytest.mark.parametrize(
    ("message", "field", "expected"),
    [
        ("SolverParameter", "type", "SGD"),
        ("SolverParameter", "solver_mode", 1),
        ("SolverParameter", "rms_decay", pytest.approx(0.99)),
        ("SolverParameter", "clip_gradients", -1),
        ("DataParameter", "backend", 0),
        ("DataParameter", "prefetch", 4),
        ("LRNParameter", "beta", 0.75),
        ("BatchNormParameter", "moving_average_fraction", pytest.approx(0.999)),
        ("LossParameter", "normalization", 1),
        ("CropParameter", "axis", 2),
        ("ReshapeParameter", "num_axes", -1),
        ("NetState", "phase", 1),
        ("MVNParameter", "eps", pytest.approx(1e-9)),
    ],
)
def test_fields_have_caffes_defaults(message, field, expected):
    assert getattr(getattr(caffe_pb2, message)(), field) == expected


def test_enums_and_their_values_are_found_where_caffe_pb2_has_them():
    assert (caffe_pb2.TRAIN, caffe_pb2.TEST) == (0, 1)
    assert caffe_pb2.Phase.Name(1) == "TEST"
    assert caffe_pb2.V1LayerParameter.CONVOLUTION == 4
    assert caffe_pb2.V1LayerParameter.LayerType.Value("SOFTMAX_LOSS") == 21
    assert caffe_pb2.PoolingParameter.RoundMode.items() == [("CEIL", 0), ("FLOOR", 1)]


def test_the_package_offers_every_name_of_caffe_pb2():
    assert set(caffe_pb2.__all__) <= set(proto.__all__)
    assert all(getattr(proto, name) is getattr(caffe_pb2, name) for name in caffe_pb2.__all__)
    assert all(hasattr(proto, name) for name in proto.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with expect_error(AttributeError, mentions="'NetParam'"):
        proto.NetParam  # noqa: B018


def test_a_message_survives_pickling_and_copying():
    net = proto.NetParameter(name="net")
    net.layer.add(name="ip", type="InnerProduct").blobs.add(data=[1, 2])

    assert pickle.loads(pickle.dumps(net)) == net
    assert copy.deepcopy(net) == net


def test_another_message_of_the_same_name_in_the_shared_pool_does_no_harm():
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="demitasse")
    file.message_type.add(name="NetParameter").field.add(name="other", number=1, type=9, label=1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

    other = message_factory.GetMessageClass(
        descriptor_pool.Default().FindMessageTypeByName("demitasse.NetParameter")
    )

    assert other(other="x").other == "x"
    assert proto.NetParameter(name="x").name == "x"


def test_caffe_skips_what_our_solver_state_adds():
    state = proto.SolverState(iter=7)
    state.resume.seed = 1
    state.resume.net.add(net="train", passes=7).layer.add(layer="data").counter.add(value=64)
    file = descriptor_pb2.FileDescriptorProto(name="plain.proto", package="plain")
    file.message_type.add(name="State").field.add(name="iter", number=1, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    plain = message_factory.GetMessageClass(pool.FindMessageTypeByName("plain.State"))

    read = plain.FromString(state.SerializeToString())

    assert read.iter == 7
    assert [field.field_number for field in UnknownFieldSet(read)] == [5000]
