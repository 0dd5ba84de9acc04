"""Test cases of layers that read or write files or run Python code, with their files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.blob import Blob
from demitasse.layers.user_layer import UserLayer
from demitasse.net import Net

RNG = np.random.default_rng(11)
IMAGES = RNG.integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
ROWS = RNG.normal(size=(4, 3, 2, 2)).astype(np.float32)
LABELS = np.arange(4, dtype=np.float32)


class Halves(UserLayer):
    """Code of the Python layer: y = x / 2."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Reshape the top like the bottom."""
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Halve the bottom."""
        top[0].data[...] = bottom[0].data / 2

    def backward(
        self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]
    ) -> None:
        """Halve the gradient."""
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff / 2


@dataclass(frozen=True)
class FileCase:
    """One layer in a net."""

    net: str  # prototxt
    write: Callable[[], None] = lambda: None  # writes files into the working directory
    needs: tuple[str, ...] = ()  # optional libraries
    phase: str = "TEST"
    prepare: Callable[[Net], None] | None = None  # called before the first pass


def _database() -> None:
    from demitasse.io.data.databases.writing import write_database

    images = ((np.moveaxis(p, 2, 0).copy(), i) for i, p in enumerate(IMAGES))
    write_database(Path("records"), images)


def _annotations() -> None:
    from demitasse.io.data.databases.writing import write_annotations

    images = (np.moveaxis(p, 2, 0).copy() for p in IMAGES)
    write_annotations(Path("boxes"), ((image, [(1, 0.1, 0.2, 0.6, 0.9)]) for image in images))


def _images() -> None:
    from PIL import Image

    for i, pixels in enumerate(IMAGES):
        Image.fromarray(pixels).save(f"p{i}.png")
        Image.fromarray(pixels[..., 0]).save(f"l{i}.png")
    Path("list.txt").write_text("".join(f"p{i}.png {i}\n" for i in range(3)))
    Path("pairs.txt").write_text("".join(f"p{i}.png l{i}.png\n" for i in range(3)))
    Path("windows.txt").write_text(
        "# 0\np0.png\n3 8 9\n2\n1 0.9 1 2 6 7\n1 0.1 0 0 4 4\n"
        "# 1\np1.png\n3 8 9\n2\n2 0.8 2 2 8 7\n2 0.1 3 0 7 3\n"
    )


def _hdf5() -> None:
    import h5py

    with h5py.File("rows.h5", "w") as file:
        file["data"], file["label"] = ROWS, LABELS
    Path("list.txt").write_text("rows.h5\n")


def _reset(net: Net) -> None:
    net.layer_by_name("layer").reset(ROWS, LABELS)  # type: ignore[attr-defined]


def _layer(name: str, fields: str) -> str:
    return f'layer {{ name: "layer" type: "{name}" top: "data" top: "label" {fields} }}'


FILES = {
    "AnnotatedData": FileCase(
        _layer("AnnotatedData", 'data_param { source: "boxes" batch_size: 2 backend: LMDB }'),
        _annotations),
    "Data": FileCase(
        _layer("Data", 'data_param { source: "records" batch_size: 2 backend: LMDB }'), _database),
    "ImageData": FileCase(
        _layer("ImageData", 'image_data_param { source: "list.txt" batch_size: 2 }'),
        _images, ("PIL",)),
    "DenseImageData": FileCase(
        _layer("DenseImageData", 'dense_image_data_param { source: "pairs.txt" batch_size: 2 }'),
        _images, ("PIL",)),
    "ImageSegData": FileCase(
        _layer("ImageSegData", 'image_data_param { source: "pairs.txt" batch_size: 2 '
               'label_type: PIXEL }'), _images, ("PIL",)),
    "WindowData": FileCase(
        _layer("WindowData", 'transform_param { crop_size: 4 } window_data_param { '
               'source: "windows.txt" batch_size: 4 fg_fraction: 0.5 }'), _images, ("PIL",)),
    "HDF5Data": FileCase(
        _layer("HDF5Data", 'hdf5_data_param { source: "list.txt" batch_size: 2 }'),
        _hdf5, ("h5py",)),
    "HDF5Output": FileCase(
        'layer { name: "data" type: "DummyData" top: "data" top: "label" '
        "dummy_data_param { shape { dim: 2 } shape { dim: 2 } "
        'data_filler { type: "gaussian" } data_filler { value: 2 } } }'
        'layer { name: "layer" type: "HDF5Output" bottom: "data" bottom: "label" '
        'hdf5_output_param { file_name: "out.h5" } }', needs=("h5py",)),
    "MemoryData": FileCase(
        _layer("MemoryData", "memory_data_param { batch_size: 2 channels: 3 height: 2 width: 2 }"),
        prepare=_reset),
    "Python": FileCase(
        "force_backward: true"
        ' layer { name: "data" type: "DummyData" top: "data" '
        'dummy_data_param { shape { dim: 2 dim: 3 } data_filler { type: "gaussian" } } }'
        ' layer { name: "layer" type: "Python" bottom: "data" top: "half" python_param '
        f'{{ module: "{__name__}" layer: "Halves" }} }}', phase="TRAIN"),
}  # fmt: skip
"""Layer type -> its case."""
