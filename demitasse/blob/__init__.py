"""Blobs: data and gradient, the memory they are in, and Caffe's methods on them."""

from demitasse.blob.blob import Blob
from demitasse.blob.changes import Changes

__all__ = ["Blob", "Changes"]
