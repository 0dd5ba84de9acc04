"""The committed descriptors and types are what the generator makes of caffe.proto."""

import runpy
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from demitasse.io.proto.messages import COMPILED

ROOT = Path(__file__).parents[3]
GENERATOR = runpy.run_path(str(ROOT / "packaging" / "generate_proto.py"))


def test_the_types_belong_to_the_descriptors():
    compiled = FileDescriptorSet.FromString(COMPILED.read_bytes())

    text = GENERATOR["stub"](compiled)

    assert text == COMPILED.with_name("caffe_pb2.pyi").read_text(encoding="utf-8")


def test_generating_again_changes_nothing(tmp_path):
    pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")

    code = GENERATOR["main"]([str(tmp_path)])

    assert code == 0
    made = FileDescriptorSet.FromString((tmp_path / "caffe.binpb").read_bytes())
    assert made == FileDescriptorSet.FromString(COMPILED.read_bytes())
    stub = (tmp_path / "caffe_pb2.pyi").read_text(encoding="utf-8")
    assert stub == COMPILED.with_name("caffe_pb2.pyi").read_text(encoding="utf-8")
