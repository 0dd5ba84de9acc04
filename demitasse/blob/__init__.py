"""Blobs: data and gradient, their memories, and Caffe's methods on them."""

from demitasse.blob.blob import Blob, VersionCounter

__all__ = ["Blob", "VersionCounter"]
