"""ImageData: batches of image files that a list names.

Source: Caffe, ``src/caffe/layers/image_data_layer.cpp``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from demitasse.backends.random import bits, stream_of
from demitasse.core.paths import resolve_path, rooted_path
from demitasse.io.data.sources.fingerprint import Fingerprint, list_fingerprint
from demitasse.io.data.sources.image_list import ImageListBatches, read_image_list
from demitasse.io.data.sources.sampler import EpochPermutation
from demitasse.io.proto import ImageDataParameter
from demitasse.layers.base import Blobs, Exactly
from demitasse.layers.checks import conflict, missing, out_of_range, positive
from demitasse.layers.data_layers.base import EpochDataLayer
from demitasse.layers.registry import register_layer


@register_layer("ImageData")
class ImageData(EpochDataLayer):
    """Images of a list, in order or shuffled in every epoch.

    Lines of the list are ``path label``; with several labels, ``path label label ...``. Labels may
    be any numbers. Paths are relative to ``root_folder``, which is also searched beside the
    prototxt.

    In phase TRAIN rank r of n reads images r, r + n, ...; in phase TEST every rank reads all.

    Shapes: top[0] (N, C, H, W), from the first image of each batch; top[1] labels (N,), or (N, n)
    for n labels.

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; one of ``new_height`` and
            ``new_width`` is given without the other; ``rand_skip`` may skip everything;
            ``on_error`` is unknown.
        DataError: The list or an image cannot be read; names it.
    """

    tops = Exactly(2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.image_data_param
        self.batch_size = positive(p.batch_size, "image_data_param.batch_size")
        if not p.source:
            raise missing("image_data_param.source", "name a list of images")
        self.size = new_size(p)
        self.source = resolve_path(p.source, self.context.base_dir)
        self.find = partial(find_image, p.root_folder, self.context.base_dir)
        self.entries = read_image_list(self.source, self.find)
        self.transformer = self.make_transformer(self.param.transform_param)
        self._position = self._skipped(p.rand_skip)
        self.shape_tops(top)

    def fingerprint(self) -> Fingerprint:
        return list_fingerprint(self.source, len(self.entries))

    def open_source(self, position: int) -> ImageListBatches:
        p = self.param.image_data_param
        return ImageListBatches(
            self.source,
            self.entries,
            self.find,
            self.transformer,
            self.batch_size,
            self._order(),
            color="color" if p.is_color else "gray",
            size=self.size,
            config=self.reader_config(position, p.on_error),
        )

    def record(self, number: int) -> tuple[str, str] | None:
        return str(self.source), self.entries[self._order()[number]].name

    def _order(self) -> EpochPermutation:
        shuffle = self.param.image_data_param.shuffle
        return EpochPermutation(len(self.entries), self.context.seed, self.name, shuffle=shuffle)

    def _skipped(self, most: int) -> int:
        """Return the number of images that ``rand_skip`` skips, below ``most``."""
        if not most:
            return 0
        drawn = bits(self.context.seed, stream_of(f"{self.name}/rand_skip"), 0, 1)
        skipped = int(drawn[0]) % most
        if skipped >= len(self.entries):
            expected = (
                f"fewer than the {len(self.entries)} images of the list; it skipped {skipped}"
            )
            raise out_of_range("image_data_param.rand_skip", most, expected)
        return skipped


def find_image(root: str, base_dir: Path | None, name: str) -> Path:
    """Return the path of an image of a list with ``root_folder``."""
    return rooted_path(root, name, base_dir)


def new_size(param: ImageDataParameter) -> tuple[int, int] | None:
    """Return the size to which images are resized, (height, width) in pixels; None for no resize.

    Raises:
        ConfigError: One of the fields is given without the other.
    """
    if bool(param.new_height) != bool(param.new_width):
        message = (
            f"new_height {param.new_height} and new_width {param.new_width} must be given together"
        )
        raise conflict("new_width" if param.new_height else "new_height", message)
    return (param.new_height, param.new_width) if param.new_height else None
