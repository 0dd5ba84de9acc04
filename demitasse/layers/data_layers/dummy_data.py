"""DummyData: tops filled by fillers, for tests and timing."""

from collections.abc import Sequence
from typing import TypeVar

from demitasse.backends.random import stream_of
from demitasse.blob import Blob
from demitasse.core.axes import LEGACY
from demitasse.io.proto import BlobShape, FillerParameter
from demitasse.layers.base import AtLeast, Blobs, Exactly, Layer
from demitasse.layers.checks import conflict, wrong_count
from demitasse.layers.fillers import filling
from demitasse.layers.registry import register_layer

T = TypeVar("T")


@register_layer("DummyData")
class DummyData(Layer):
    """Fill the tops: with a constant filler once, with another filler before every forward.

    Values that a caller writes into a constant top stay. Not compared with the original.

    Source: Caffe, ``src/caffe/layers/dummy_data_layer.cpp``.
    Shapes: no bottom -> tops as given by ``shape``, or by num, channels, height and width; each is
    given once for all tops, or for each of them.

    Raises:
        ConfigError: Shapes or fillers are given another number of times, both kinds of shapes are
            given, or a filler cannot be.
    """

    bottoms = Exactly(0)
    tops = AtLeast(1)
    dynamic_shapes = True  # tops are filled on the host

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.dummy_data_param
        self.fillers = _each(list(p.data_filler) or [FillerParameter()], len(top), "data_filler")
        for blob, shape in zip(top, self._shapes(len(top)), strict=True):
            blob.reshape(shape)
        self.fills = 0
        for index, blob in enumerate(top):
            if self._is_constant(index):
                self._fill(index, blob)
            else:
                filling(blob.shape, self.fillers[index], 0, 0)  # checks the filler

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing: the caller may have reshaped the tops."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.fills += 1
        for index, blob in enumerate(top):
            if not self._is_constant(index):
                self._fill(index, blob)

    def state(self) -> dict[str, int]:
        return {"fills": self.fills}

    def set_state(self, state: dict[str, int]) -> None:
        self.fills = state.get("fills", self.fills)

    def _is_constant(self, index: int) -> bool:
        return bool(self.fillers[index].type == "constant")

    def _fill(self, index: int, blob: Blob) -> None:
        """Fill one top on the host, for the same numbers on every device."""
        stream = stream_of(f"{self.name}/{index}/{self.fills}")
        values = filling(blob.shape, self.fillers[index], self.context.seed, stream)()
        host = blob.data_memory.mutable_cpu_data(discard=True)
        host[: blob.count] = values.reshape(-1)

    def _shapes(self, tops: int) -> Sequence[BlobShape | list[int]]:
        p = self.param.dummy_data_param
        legacy = [list(getattr(p, name)) for name in LEGACY]
        if not any(legacy):
            return _each(list(p.shape), tops, "shape")
        if p.shape:
            message = (
                "dummy_data_param has both shape and num, channels, height or width; remove one"
            )
            raise conflict("dummy_data_param.shape", message)
        axes = [_each(sizes, tops, name) for name, sizes in zip(LEGACY, legacy, strict=True)]
        return [list(shape) for shape in zip(*axes, strict=True)]


def _each(given: list[T], tops: int, name: str) -> list[T]:
    if len(given) not in {1, tops}:
        raise wrong_count(f"dummy_data_param.{name}", len(given), f"1 or {tops}, one for each top")
    return given * tops if len(given) == 1 else given
