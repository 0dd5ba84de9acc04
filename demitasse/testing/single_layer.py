"""One layer outside of a net, with its own bottoms and tops: for tests of layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.blob import Blob
from demitasse.device import Device, current_device, use_device
from demitasse.errors import PrototxtError
from demitasse.layers import Layer, LayerContext, create_layer
from demitasse.proto import LayerParameter, NetParameter, parse_text

__all__ = ["SingleLayer", "make_layer"]


class SingleLayer:
    """A layer that is set up and can be run; made by :func:`make_layer`.

    Attributes:
        layer: The layer itself.
        bottom: Its bottoms; ``bottom[i].data`` and ``.diff`` are numpy views.
        top: Its tops; in place, ``top[i] is bottom[i]``.
    """

    def __init__(self, layer: Layer, bottom: list[Blob], top: list[Blob]) -> None:
        self.layer, self.bottom, self.top = layer, bottom, top

    @property
    def params(self) -> list[Blob]:
        """The layer's parameters."""
        return self.layer.blobs

    def forward(self, *bottoms: Any) -> list[np.ndarray]:
        """Run reshape and forward.

        Args:
            bottoms: New values of the bottoms, whose shapes follow; none keeps what is there.

        Returns:
            Copies of the tops.
        """
        for blob, value in zip(self.bottom, bottoms, strict=bool(bottoms)):
            _put(blob, value)
        with self._at_work():
            self.layer.reshape(self.bottom, self.top)
            self.layer.fill_loss_weights(self.top)
            self.layer.run_forward(self.bottom, self.top)
        return [np.array(blob.cpu_data()) for blob in self.top]

    def backward(
        self, *top_diffs: Any, propagate_down: Sequence[bool] | None = None
    ) -> list[np.ndarray | None]:
        """Run backward.

        Args:
            top_diffs: Gradients of the tops; none keeps what is there, in a loss layer the loss
                weights.
            propagate_down: For each bottom whether its gradient is wanted; by default those that
                the layer has a gradient for.

        Returns:
            Copies of the gradients of the bottoms, None where not wanted. Gradients of parameters
            are added to ``params[i].diff``.
        """
        for blob, value in zip(self.top, top_diffs, strict=bool(top_diffs)):
            blob.mutable_cpu_diff()[...] = value
        wanted = self.differentiable() if propagate_down is None else list(propagate_down)
        with self._at_work():
            self.layer.backward(self.top, wanted, self.bottom)
        pairs = zip(self.bottom, wanted, strict=True)
        return [np.array(blob.cpu_diff()) if want else None for blob, want in pairs]

    def differentiable(self) -> list[bool]:
        """Return, for each bottom, whether the layer has a gradient for it."""
        return [self.layer.allow_force_backward(i) for i in range(len(self.bottom))]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with use_device(self.layer.device), self.layer.device.backend.enter():
            yield


def make_layer(
    layer: str | LayerParameter,
    bottoms: Sequence[Any] = (),
    *,
    phase: str = "TRAIN",
    device: str | Device | None = None,
    dtype: str = "float64",
    seed: int = 1,
    base_dir: str | Path | None = None,
) -> SingleLayer:
    """Create and set up one layer.

    Args:
        layer: Its message, or prototxt: the fields of a layer, with or without ``layer { }``
            around them. Bottoms and tops need no names. A top with the name of a bottom makes the
            layer run in place.
        bottoms: Values of the bottoms, of any shape; labels, too, are numbers.
        phase: "TRAIN" or "TEST".
        device: Where it runs; the current device by default.
        dtype: What it computes in. Gradients are checked in "float64".
        seed: Key of its fillers and random numbers.
        base_dir: Folder where files that it names are looked for, besides the working directory.

    Raises:
        PrototxtError: The text is not one layer.
        DemitasseError: What the layer itself refuses.

    Example::

        layer = make_layer('type: "ReLU"', [[[-1.0, 2.0]]])
        layer.forward()  # [array([[0., 2.]])]
        layer.backward([[1, 1]])  # [array([[0., 1.]])]
    """
    param = _message(layer)
    context = LayerContext(
        device=current_device() if device is None else Device(device),
        dtype=dtype,
        seed=seed,
        base_dir=None if base_dir is None else Path(base_dir),
    )
    made = create_layer(param, phase, context)
    below = [_blob(param, i, value, context) for i, value in enumerate(bottoms)]
    above = _tops(made, param, below, context)
    with use_device(context.device), context.device.backend.enter():
        made.initialize(below, above)
    return SingleLayer(made, below, above)


def _message(layer: str | LayerParameter) -> LayerParameter:
    param = LayerParameter()
    if not isinstance(layer, str):
        param.CopyFrom(layer)
    elif re.match(r"\s*layer\s*:?\s*{", layer):
        net = parse_text(layer, NetParameter)
        if len(net.layer) != 1:
            message = f"one layer is needed, the text has {len(net.layer)}"
            raise PrototxtError(message)
        param.CopyFrom(net.layer[0])
    else:
        param = parse_text(layer, LayerParameter)
    param.name = param.name or "layer"
    return param


def _blob(param: LayerParameter, index: int, value: Any, context: LayerContext) -> Blob:
    name = param.bottom[index] if index < len(param.bottom) else f"bottom{index}"
    blob = Blob((), context.dtype, context.device, name)
    _put(blob, value)
    return blob


def _tops(
    layer: Layer, param: LayerParameter, bottom: list[Blob], context: LayerContext
) -> list[Blob]:
    names = list(param.top)
    fewest = len(bottom) if layer.same_count else max(layer.tops.low, int(layer.auto_tops))
    names += [f"top{i}" for i in range(len(names), fewest)]
    places = {blob.name: blob for blob in bottom}
    return [places.get(name) or Blob((), context.dtype, context.device, name) for name in names]


def _put(blob: Blob, value: Any) -> None:
    array = np.asarray(value)
    blob.reshape(array.shape)
    blob.mutable_cpu_data()[...] = array
