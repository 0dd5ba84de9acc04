"""WindowData: windows of images, some around objects and some not, drawn at random."""

from functools import partial

from demitasse.core.paths import resolve_path, rooted_path
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.data.images.crop import WindowCrop
from demitasse.io.data.sources.fingerprint import Fingerprint, list_fingerprint
from demitasse.io.data.sources.windows import WindowBatches, read_window_file, window_mean
from demitasse.io.data.transform.augment import FIELDS
from demitasse.io.data.transform.random import RecordRandom
from demitasse.layers.base import Blobs, Exactly
from demitasse.layers.checks import out_of_range, positive, unsupported
from demitasse.layers.data_layers.base import PrefetchingDataLayer
from demitasse.layers.registry import register_layer

MODES = {"warp": False, "square": True}


@register_layer("WindowData")
class WindowData(PrefetchingDataLayer):
    """Draw ``fg_fraction`` of a batch from foreground windows and the rest from background windows.

    A window is resized to ``crop_size`` in both directions; ``context_pad`` adds its
    surroundings, and ``crop_mode: "square"`` widens it to a square first. Pixels outside the image
    are 0. Both ``scale`` fields count. Not compared with the original.

    Source: Caffe, ``src/caffe/layers/window_data_layer.cpp``.
    Shapes: top[0] (N, C, crop_size, crop_size), top[1] (N,) classes, 0 for background.

    Raises:
        ConfigError: ``source``, ``batch_size`` or ``crop_size`` is missing; ``crop_mode`` is
            unknown; ``context_pad`` leaves no room; the mean is given twice; ``on_error`` is
            unknown; or one of SSD's transforms is wanted.
        DataError: The window file, the mean or an image cannot be read; the error names it.
        ShapeError: The mean does not fit.
    """

    tops = Exactly(2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p, transform = self.param.window_data_param, self.param.transform_param
        self.read_source(p, "window_data_param", "name a window file")
        size = positive(transform.crop_size or p.crop_size, "transform_param.crop_size")
        if p.crop_mode not in MODES:
            field = "window_data_param.crop_mode"
            message = f"{field} is {p.crop_mode!r}; known are warp and square"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, field=field, got=p.crop_mode)
        if not 0 <= p.fg_fraction <= 1:
            field, expected = "window_data_param.fg_fraction", "a number from 0 to 1"
            raise out_of_range(field, p.fg_fraction, expected)
        if 2 * p.context_pad >= size:
            expected = f"less than half of the {size} pixels of a crop"
            raise out_of_range("window_data_param.context_pad", p.context_pad, expected)
        self.cut = WindowCrop(size, p.context_pad, MODES[p.crop_mode])
        self.windows = read_window_file(self.source, p.fg_threshold, p.bg_threshold)
        unused = [name for name in (*FIELDS, "crop_h", "crop_w") if transform.HasField(name)]
        if unused:
            message = f"WindowData crops and resizes by itself; remove {', '.join(unused)}"
            raise unsupported(f"transform_param.{unused[0]}", message)
        file = transform.mean_file or p.mean_file
        self.mean = window_mean(
            resolve_path(file, self.context.base_dir) if file else None,
            transform.mean_value,
            self.windows.channels,
            size,
        )
        self.shape_tops(top)

    def fingerprint(self) -> Fingerprint:
        return list_fingerprint(self.source)

    def open_source(self, position: int) -> WindowBatches:
        p, transform = self.param.window_data_param, self.param.transform_param
        context = self.context
        return WindowBatches(
            self.source,
            self.windows,
            partial(rooted_path, p.root_folder, base=context.base_dir),
            self.cut,
            self.batch_size,
            p.fg_fraction,
            mirror=transform.mirror or p.mirror,
            mean=self.mean,
            scale=transform.scale * p.scale,
            random=RecordRandom(context.seed, self.name),
            cache=p.cache_images,
            config=self.reader_config(position, p.on_error),
        )
