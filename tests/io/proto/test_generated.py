"""The committed descriptors and types are what the generator makes of caffe.proto."""

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from demitasse.io.proto import generate
from demitasse.io.proto.messages import COMPILED


def test_the_types_belong_to_the_descriptors():
    compiled = FileDescriptorSet.FromString(COMPILED.read_bytes())

    text = generate.stub(compiled)

    assert text == COMPILED.with_name("caffe_pb2.pyi").read_text(encoding="utf-8")


def test_generating_again_changes_nothing(tmp_path):
    pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")

    code = generate.main([str(tmp_path)])

    assert code == 0
    made = FileDescriptorSet.FromString((tmp_path / "caffe.binpb").read_bytes())
    assert made == FileDescriptorSet.FromString(COMPILED.read_bytes())
    stub = (tmp_path / "caffe_pb2.pyi").read_text(encoding="utf-8")
    assert stub == COMPILED.with_name("caffe_pb2.pyi").read_text(encoding="utf-8")
