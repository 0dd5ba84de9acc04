"""Fields of images in the arguments of kernels."""

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, Word


class ImageFields(Struct):
    """Images that are read."""

    at: Address
    image_stride: Word
    row_stride: Word
    column_stride: Word
    channel_stride: Word
    images: Word
    channels: Word
    rows: Word
    columns: Word

    @classmethod
    def of(cls, images: Images) -> Values:
        """Return the fields of images, whose address is an argument of each call."""
        return cls.values(at=RUNTIME, **geometry(images))

    def row(self, image: Word, row: Word) -> Word:
        """Return the address of a row's first pixel."""
        return self.at + (image * self.image_stride + row * self.row_stride) * FLOAT


class OutputFields(ImageFields):
    """Images that are written."""

    at: Output


def geometry(images: Images) -> dict[str, int]:
    """Return the fields but for the address."""
    count, channels, rows, columns = images.shape
    return {
        "image_stride": images.image_stride,
        "row_stride": images.row_stride,
        "column_stride": images.column_stride,
        "channel_stride": images.channel_stride,
        "images": count,
        "channels": channels,
        "rows": rows,
        "columns": columns,
    }
