"""The file formats of Caffe: messages, reading, writing, and upgrades of old files."""

from demitasse.proto.caffe_pb2 import *  # noqa: F403
