"""What a prototxt that a net was trained with says of how images are prepared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from demitasse.io.proto import LayerParameter, Phase, TransformationParameter, read_net

__all__ = ["Trained", "trained_on"]


@dataclass(frozen=True)
class Trained:
    """How the data layer of a training net prepares images; empty where it does not say.

    Attributes:
        mean: Values that are subtracted.
        mean_file: The file of a mean image, as the prototxt names it.
        scale: The factor after that.
        crop: Height and width of what is cut out, in pixels.
        size: Height and width that images are brought to, in pixels.
        channels: "gray" where images are read so.
    """

    mean: tuple[float, ...] = ()
    mean_file: str = ""
    scale: float = 1.0
    crop: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    channels: str = ""


def trained_on(net: Path) -> Trained | None:
    """Return what a training net's data layer says, that for phase TEST if there are two.

    Returns:
        That, or None where the net has no layer that reads images.

    Raises:
        PrototxtError: The file cannot be read.
    """
    layers = [layer for layer in read_net(net).message.layer if layer.HasField("transform_param")]
    layers = [layer for layer in layers if not layer.bottom]
    if not layers:
        return None
    return _of(next((layer for layer in layers if _tests(layer)), layers[0]))


def _tests(layer: LayerParameter) -> bool:
    return any(rule.phase == Phase.Value("TEST") for rule in layer.include)


def _of(layer: LayerParameter) -> Trained:
    p, images = layer.transform_param, layer.image_data_param
    size: tuple[int, ...] = (images.new_height, images.new_width)
    if p.HasField("resize_param"):
        size = (p.resize_param.height, p.resize_param.width)
    return Trained(
        mean=tuple(round(value, 6) for value in p.mean_value),
        mean_file=p.mean_file,
        scale=float(f"{p.scale:.7g}"),  # as it was written, not as float32 has it
        crop=_crop(p),
        size=size if all(size) else (),
        channels="gray" if p.force_gray else "",
    )


def _crop(p: TransformationParameter) -> tuple[int, ...]:
    if p.crop_h and p.crop_w:
        return (p.crop_h, p.crop_w)
    return (p.crop_size, p.crop_size) if p.crop_size else ()
