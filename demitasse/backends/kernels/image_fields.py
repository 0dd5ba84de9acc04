"""Fields of images in the arguments of kernels; the channels of a pixel or block are contiguous."""

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, Word


class ImageFields(Struct):
    """Images that are read."""

    at: Address
    image_stride: Word
    row_stride: Word
    column_stride: Word
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


class BlockFields(ImageFields):
    """Images that are read, in blocks of contiguous channels."""

    images: Word
    blocks: Word
    block_channels: Word
    block_stride: Word

    @classmethod
    def of(cls, images: Images) -> Values:
        n, channels, _, _ = images.shape
        return cls.values(
            **geometry(images),
            images=n,
            blocks=channels // images.block,
            block_channels=images.block,
            block_stride=images.block_stride,
        )

    def line(self, number: Word) -> tuple[Word, Word, Word]:
        """Return image, block and row of a row, counted through all blocks and images."""
        blocks = number // self.rows
        return blocks // self.blocks, blocks % self.blocks, number % self.rows

    def start(self, image: Word, block: Word, row: Word) -> Word:
        """Return the address of the first pixel of a row."""
        first = image * self.image_stride + block * self.block_stride + row * self.row_stride
        return self.at + first * FLOAT


class BlockOutputFields(BlockFields):
    """Images that are written, in blocks of contiguous channels."""

    at: Output


def geometry(images: Images) -> dict[str, int]:
    """Return the fields but for the address."""
    _, _, rows, columns = images.shape
    return {
        "image_stride": images.image_stride,
        "row_stride": images.row_stride,
        "column_stride": images.column_stride,
        "rows": rows,
        "columns": columns,
    }
