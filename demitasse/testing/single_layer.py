"""A single layer with its own bottoms and tops, for tests of layers."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.backends.storage import Stored
from demitasse.blob import Blob, VersionCounter
from demitasse.core.deprecated import deprecated_attribute, renamed_arguments
from demitasse.core.device import Device, current_device, use_device
from demitasse.errors import ErrorCode, NetError, PrototxtError
from demitasse.io.proto import LayerParameter, NetParameter, parse_text
from demitasse.layers import Layer, LayerContext, create_layer
from demitasse.plan import LayerBinding, Plan, PlannedLayer


class SingleLayer:
    """A layer that can run outside of a net; made by ``make_layer``.

    It runs as in a net: by the Step of its backend, or by its portable code.

    Attributes:
        layer: The layer.
        bottom: Bottoms; ``bottom[i].data`` and ``.diff`` are numpy views.
        top: Tops; in place, ``top[i] is bottom[i]``.
        propagate_down: For each bottom, True to compute its gradient.
    """

    def __init__(
        self, layer: Layer, bottom: list[Blob], top: list[Blob],
        propagate_down: Sequence[bool] | None = None, *, optimize: bool = True,
    ) -> None:  # fmt: skip
        self.layer, self.bottom, self.top = layer, bottom, top
        self._optimize = optimize
        wanted = self.differentiable() if propagate_down is None else propagate_down
        self.propagate_down = list(wanted)
        layer.refuse_gradients(bottom, self.propagate_down)
        self._start: list[tuple[Blob, np.ndarray]] = []
        self._working = False

    wanted = deprecated_attribute("SingleLayer", "wanted", "propagate_down")
    at_work = deprecated_attribute("SingleLayer", "at_work", "on_device")

    @property
    def params(self) -> list[Blob]:
        """Parameters of the layer."""
        return self.layer.blobs

    @property
    def entry(self) -> PlannedLayer:
        """Plan of the layer: its Step, or why it has none."""
        return self._plan.entries[0]

    def forward(self, *bottoms: Any) -> list[np.ndarray]:
        """Run reshape and forward; return copies of the tops.

        ``bottoms`` are new values of the bottoms, of any shape; none keep the present values.
        """
        for blob, value in zip(self.bottom, bottoms, strict=bool(bottoms)):
            array = np.asarray(value)
            blob.reshape(array.shape)
            blob.mutable_cpu_data()[...] = array
        with self.on_device():
            self._plan.reshape()
            self.layer.fill_loss_weights(self.top)
            in_place = [blob for blob in self.bottom if blob in self.top]
            changed = (*in_place, *self.params, *self.layer.internal_blobs())
            if self.entry.step is None:  # a Step reads and writes these blobs
                changed = ()
            self._start = [(blob, np.array(blob.cpu_data())) for blob in changed]
            self._plan.forward(0, 0)
        return [np.array(blob.cpu_data()) for blob in self.top]

    def backward(
        self, *top_diffs: Any, propagate_down: Sequence[bool] | None = None
    ) -> list[np.ndarray | None]:
        """Run backward.

        Args:
            top_diffs: Gradients of the tops; none to keep the present ones, which are the loss
                weights in a loss layer.
            propagate_down: For each bottom, True to compute its gradient; by default that of
                ``make_layer``. A change prepares a new Step and runs forward again.

        Returns:
            Copies of the gradients of the bottoms, None for bottoms without ``propagate_down``.
            Gradients of parameters are added to ``params[i].diff``.
        """
        for blob, value in zip(self.top, top_diffs, strict=bool(top_diffs)):
            blob.mutable_cpu_diff()[...] = value
        wanted = self.propagate_down if propagate_down is None else list(propagate_down)
        with self.on_device():
            if wanted != self.propagate_down:
                self._want(wanted)
            self._plan.backward(0, 0)
        pairs = zip(self.bottom, wanted, strict=True)
        return [np.array(blob.cpu_diff()) if want else None for blob, want in pairs]

    def differentiable(self) -> list[bool]:
        """Return True for each bottom that the layer has a gradient for."""
        return [self.layer.allow_force_backward(i) for i in range(len(self.bottom))]

    @cached_property
    def _plan(self) -> Plan:
        """Plan of this layer, for the gradients in ``propagate_down``."""
        learned = [self.layer.param_propagate_down(i) for i in range(len(self.params))]
        blobs, flags = (tuple(self.bottom), tuple(self.top)), tuple(self.propagate_down)
        place = LayerBinding(self.layer, *blobs, flags, backward=any(flags) or any(learned))
        return Plan([place], VersionCounter(), optimize=self._optimize)

    def _want(self, wanted: list[bool]) -> None:
        """Make a new plan for these gradients, and repeat forward if the old plan ran it."""
        self.layer.refuse_gradients(self.bottom, wanted)
        ran, self.propagate_down = self.entry.executed_step, wanted
        del self._plan
        if ran is not None:
            for blob, value in self._start:
                blob.mutable_cpu_data()[...] = value
            self._plan.forward(0, 0)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make the layer's device current in a block, to save this cost around many passes.

        Arithmetic in the block emits no warnings, as in a pass.
        """
        if self._working:
            yield
            return
        with use_device(self.layer.device), self.layer.device.backend.enter():
            self._working = True
            try:
                yield
            finally:
                self._working = False


@renamed_arguments(lowered="optimize")
def make_layer(
    layer: str | LayerParameter,
    bottoms: Sequence[Any] = (),
    *,
    phase: str = "TRAIN",
    device: str | Device | None = None,
    dtype: str = "float64",
    seed: int = 1,
    base_dir: str | Path | None = None,
    propagate_down: Sequence[bool] | None = None,
    optimize: bool = True,
    storage: Stored = "float",
) -> SingleLayer:
    """Create and set up one layer.

    Args:
        layer: Message or prototxt: the fields of a layer, with or without ``layer { }`` around
            them. Bottoms and tops need no names. A top with the name of a bottom makes the layer
            run in place.
        bottoms: Values of the bottoms, of any shape; labels are numbers, too.
        phase: "TRAIN" or "TEST".
        device: Device of the layer; None for the current device.
        dtype: Element type. Gradient checks need "float64".
        seed: Key of the layer's fillers and random numbers.
        base_dir: Folder of files that the layer names, in addition to the working directory.
        propagate_down: For each bottom, True to compute its gradient; None for all bottoms that the
            layer has a gradient for.
        optimize: Allow the backend to run a Step; False runs the layer's portable code.
        storage: Element type of tops in GPU memory: "float", "half" or "bfloat16".

    Raises:
        PrototxtError: The text is not one layer.
        NetError: The layer uses tops that neither its class nor the prototxt declares.
        DemitasseError: The layer refuses its fields or bottoms.

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
        storage=storage,
    )
    made = create_layer(param, phase, context)
    below = [_blob(param, i, value, context) for i, value in enumerate(bottoms)]
    above = _tops(made, param, below, context)
    with use_device(context.device), context.device.backend.enter():
        try:
            made.initialize(below, above)
        except IndexError as error:
            if above:
                raise
            message = (
                f"layer type {made.type!r} uses a top that does not exist; declare tops in its "
                "class (tops = Exactly(1)), or name them in the prototxt (top: 'y')"
            )
            details = {"layer": made.name, "field": "tops"}
            raise NetError(message, code=ErrorCode.MISSING, **details) from error
    return SingleLayer(made, below, above, propagate_down, optimize=optimize)


def _message(layer: str | LayerParameter) -> LayerParameter:
    param = LayerParameter()
    if not isinstance(layer, str):
        param.CopyFrom(layer)
    elif re.match(r"\s*layer\s*:?\s*{", layer):
        net = parse_text(layer, NetParameter)
        if len(net.layer) != 1:
            got, message = len(net.layer), f"got {len(net.layer)} layers, expected 1"
            raise PrototxtError(message, code=ErrorCode.COUNT_MISMATCH, got=got, expected=1)
        param.CopyFrom(net.layer[0])
    else:
        param = parse_text(layer, LayerParameter)
    param.name = param.name or "layer"
    return param


def _blob(param: LayerParameter, index: int, value: Any, context: LayerContext) -> Blob:
    name = param.bottom[index] if index < len(param.bottom) else f"bottom{index}"
    array = np.asarray(value)
    blob = Blob(array.shape, context.dtype, context.device, name)
    blob.mutable_cpu_data()[...] = array
    return blob


def _tops(
    layer: Layer, param: LayerParameter, bottom: list[Blob], context: LayerContext
) -> list[Blob]:
    names = list(param.top)
    fewest = len(bottom) if layer.same_count else max(layer.tops.low, int(layer.auto_tops))
    names += [f"top{i}" for i in range(len(names), fewest)]
    places = {blob.name: blob for blob in bottom}
    return [places.get(name) or Blob((), context.dtype, context.device, name) for name in names]
