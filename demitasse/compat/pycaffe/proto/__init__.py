"""Caffe's messages, for ``from caffe.proto import caffe_pb2``."""

from demitasse.io.proto import caffe_pb2

__all__ = ["caffe_pb2"]
