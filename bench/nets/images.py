"""Databases of images to read, and nets that do nothing else."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import write_records
from demitasse.io.proto import Datum

__all__ = ["IMAGES", "Images"]

DIFFERENT = 64
"""How many images there are; a database repeats them."""


@dataclass(frozen=True)
class Images:
    """One kind of record.

    Attributes:
        channels: Of an image.
        side: Of a stored image, in pixels.
        crop: Side of what is cut out of it, at random places; 0 for all of it.
        jpeg: Whether records are JPEG files instead of bytes.
    """

    channels: int
    side: int
    crop: int = 0
    jpeg: bool = False

    def write(self, folder: Path, count: int) -> None:
        """Write a database of ``count`` records.

        JPEG files need Pillow.
        """
        made = list(self._datums(min(count, DIFFERENT)))
        write_records(folder, ((b"%08d" % i, made[i % len(made)]) for i in range(count)))

    def net(self, folder: Path, batch: int) -> str:
        """Return the prototxt of a net that reads the database, in phase TRAIN."""
        crop = f"crop_size: {self.crop} mirror: true " if self.crop else ""
        mean = " ".join(f"mean_value: {value}" for value in (104, 117, 123)[: self.channels])
        transform = f"{crop}{mean}" if self.crop else "scale: 0.00390625"
        data = f'source: "{folder.as_posix()}" batch_size: {batch} backend: LMDB'
        return (
            'layer { name: "data" type: "Data" top: "data" top: "label" '
            f"transform_param {{ {transform} }} data_param {{ {data} }} }}\n"
        )

    def _datums(self, count: int) -> Iterator[Datum]:
        rng = np.random.default_rng(0)
        for number in range(count):
            if not self.jpeg:
                shape = (self.channels, self.side, self.side)
                yield array_to_datum(rng.integers(0, 256, shape, np.uint8), number % 10)
                continue
            yield Datum(data=self._file(rng), encoded=True, label=number % 10)

    def _file(self, rng: np.random.Generator) -> bytes:
        """Return a JPEG file about as rough as a photograph."""
        import PIL.Image

        rough = PIL.Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8))
        smooth = np.asarray(rough.resize((self.side, self.side), PIL.Image.Resampling.BICUBIC))
        noisy = smooth + rng.normal(0, 6, smooth.shape)
        file = io.BytesIO()
        PIL.Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        return file.getvalue()


IMAGES = {
    "raw28": Images(1, 28),
    "raw64": Images(3, 64),
    "raw256": Images(3, 256, crop=227),
    "jpeg256": Images(3, 256, crop=227, jpeg=True),
}
