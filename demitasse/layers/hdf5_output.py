"""HDF5Output: store the bottoms of every pass in an HDF5 file.

Source: Caffe, ``src/caffe/layers/hdf5_output_layer.cpp``.
"""

from __future__ import annotations

from pathlib import Path

from demitasse.io.data.databases.hdf5 import Hdf5Writer
from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import missing, wrong_shapes
from demitasse.layers.registry import register

__all__ = ["HDF5Output"]


@register("HDF5Output")
class HDF5Output(Layer):
    """Appends its first bottom to the data set ``data`` and its second to ``label``.

    A file that is there is replaced when the net is made. (Caffe can store one batch; a second
    forward pass ends it.) Not compared with the original.

    Shapes: bottoms (N, ...), (N, ...), each of at most 4 axes and stored with 4 -> no top.

    Raises:
        ConfigError: ``file_name`` is missing.
        DataError: The file cannot be written.
        ShapeError: The bottoms have different batch sizes, or more than 4 axes.
    """

    bottoms = Exactly(2)
    tops = Exactly(0)
    dynamic_shapes = True  # works on the host

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        name = self.param.hdf5_output_param.file_name
        if not name:
            raise missing("hdf5_output_param.file_name", "name the file to write")
        self.writer = Hdf5Writer(Path(name))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        del top
        if bottom[0].num != bottom[1].num:
            raise wrong_shapes("HDF5Output", "bottoms of one batch size", *bottom)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        del top
        data, label = (
            blob.cpu_data().reshape(blob.num, blob.channels, blob.height, blob.width)
            for blob in bottom
        )
        self.writer.append(data=data, label=label)

    def backward(self, top: Blobs, propagate_down: object, bottom: Blobs) -> None:
        """Nothing: what is stored has no influence on a loss."""

    def close(self) -> None:
        self.writer.close()
