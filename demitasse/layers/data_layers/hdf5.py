"""HDF5Data and HDF5Output: rows of HDF5 files, read or written."""

from pathlib import Path

from demitasse.io.data.databases.hdf5 import Hdf5Writer, read_list
from demitasse.io.data.sources.arrays import Hdf5Batches
from demitasse.io.data.sources.fingerprint import Fingerprint, list_fingerprint
from demitasse.layers.base import AtLeast, Blobs, Exactly, Layer
from demitasse.layers.checks import missing, unsupported, wrong_shapes
from demitasse.layers.data_layers.base import EpochDataLayer
from demitasse.layers.registry import register_layer


@register_layer("HDF5Data")
class HDF5Data(EpochDataLayer):
    """Data sets named after the tops, in an endless loop.

    Batches of rows of HDF5 files. ``source`` lists the files, one per line, relative to the working
    directory or the prototxt. ``shuffle`` shuffles the files and the rows of each file in every
    epoch. Files read in order are never in memory as a whole. In phase TRAIN rank r of n reads rows
    r, r + n, ...; in phase TEST every rank reads all.

    Source: Caffe, ``src/caffe/layers/hdf5_data_layer.cpp``.
    Shapes: tops (N, ...), rows as in the files, which must agree.

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; ``transform_param`` is given.
        DataError: The list or a file cannot be read, or lacks a data set; the error names it.
    """

    tops = AtLeast(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.hdf5_data_param
        self.read_source(p, "hdf5_data_param", "name a text file that lists HDF5 files")
        if self.param.HasField("transform_param"):
            message = "HDF5Data does not transform data; remove transform_param"
            raise unsupported("transform_param", message)
        self.names = [blob.name for blob in top]
        self.paths = read_list(self.source, self.context.base_dir)
        self.shape_tops(top)

    def fingerprint(self) -> Fingerprint:
        return list_fingerprint(self.source, files=self.paths)

    def open_source(self, position: int) -> Hdf5Batches:
        context = self.context
        return Hdf5Batches(
            self.paths,
            self.names,
            self.batch_size,
            shuffle=self.param.hdf5_data_param.shuffle,
            seed=context.seed,
            name=self.name,
            config=self.reader_config(position),
        )


@register_layer("HDF5Output")
class HDF5Output(Layer):
    """Append the first bottom to the data set ``data`` and the second to ``label``.

    Store the bottoms of every pass in an HDF5 file. The first pass replaces an existing file.
    (Caffe aborts in a second pass.) Not compared with the original.

    Source: Caffe, ``src/caffe/layers/hdf5_output_layer.cpp``.
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
        name = self.param.hdf5_output_param.file_name
        if not name:
            raise missing("hdf5_output_param.file_name", "name the file to write")
        self.writer = Hdf5Writer(Path(name))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        if bottom[0].num != bottom[1].num:
            raise wrong_shapes("HDF5Output", "bottoms of one batch size", *bottom)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        data, label = (
            blob.cpu_data().reshape(blob.num, blob.channels, blob.height, blob.width)
            for blob in bottom
        )
        self.writer.append(data=data, label=label)

    def backward(self, top: Blobs, propagate_down: object, bottom: Blobs) -> None:
        """Do nothing: a loss does not depend on the file."""

    def close(self) -> None:
        self.writer.close()
