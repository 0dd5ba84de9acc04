"""The file formats of Caffe: messages, reading, writing, and upgrades of old files."""

from demitasse.proto import caffe_pb2
from demitasse.proto.arrays import floats, set_floats, stored_shape
from demitasse.proto.caffe_pb2 import *  # noqa: F403

__all__ = ["caffe_pb2", "floats", "set_floats", "stored_shape"]
__all__ += caffe_pb2.__all__
