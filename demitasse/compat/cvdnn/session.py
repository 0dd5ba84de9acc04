"""A net of the engine that runs as OpenCV's does: from layer to layer, from what it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter_ns

import numpy as np

from demitasse.compat.cvdnn.detections import filled_up
from demitasse.compat.cvdnn.errors import error
from demitasse.compat.cvdnn.imported import INPUTS, Built, Imported, Shape
from demitasse.core.device import Device
from demitasse.plan.stopwatch import Stopwatch

__all__ = ["Session"]


class Session:
    """What is known of a net, the net of the engine once it is made, and what it is to run on.

    Args:
        imported: The net as OpenCV's importer sees it.

    Attributes:
        imported: The same.
        built: The net of the engine; None as long as the shape of an input is missing.
        given: The inputs that were set, by name.
        timings: How long the last pass took, and each layer of it, in nanoseconds.
    """

    def __init__(self, imported: Imported) -> None:
        self.imported = imported
        self.built: Built | None = None
        self._device: Device | None = None
        self.given: dict[str, np.ndarray] = {}
        self.timings: tuple[int, list[float]] = (0, [])

    def build(self, shapes: Mapping[str, Shape]) -> None:
        """Make the net of the engine, unless it is made or the shape of an input is missing.

        Args:
            shapes: Those of inputs whose shape the text does not give.
        """
        if self.built is None:
            self.built = self.imported.build(shapes, self._device)

    def ready(self) -> Built:
        """Return the net of the engine, made at last where shapes of inputs were missing.

        Raises:
            error: They still are.
        """
        self.build({name: values.shape for name, values in self.given.items()})
        if self.built is None:
            message = (
                f"the file gives no shapes of inputs {', '.join(self.imported.inputs)}; "
                "call setInput for each"
            )
            raise error(message)
        return self.built

    def move(self, device: Device) -> None:
        """Run on another device."""
        self._device = device
        if self.built is not None:
            self.built.net.to(device)

    def last(self) -> str:
        """Return the name of the last layer.

        Raises:
            error: There are no layers.
        """
        if not self.imported.layers:
            message = "the net is empty; read one with readNetFromCaffe"
            raise error(message)
        return self.imported.names[-1]

    def outputs(self, names: list[str]) -> list[list[np.ndarray]]:
        """Return copies of what layers give, having run the net from one to the next.

        So each is read before a layer that runs in place writes over it.

        Raises:
            error: There is no such layer, an input is missing, or weights are.
        """
        numbers = [self.imported.number(name) for name in names]
        if 0 in numbers:
            message = f"{INPUTS!r} are the inputs; name a layer that computes"
            raise error(message)
        built = self.ready()
        if built.untrained:
            message = (
                f"layers {', '.join(built.untrained)} have parameters and no weights were given; "
                "give readNetFromCaffe the caffemodel, too"
            )
            raise error(message)
        missing = [name for name in self.imported.inputs if name not in self.given]
        if missing:
            message = f"inputs {', '.join(missing)} are missing; call setInput for each"
            raise error(message)
        for name, values in self.given.items():
            built.net.set_input(name, values)
        found: dict[int, list[np.ndarray]] = {}
        start = 0
        with self._timed(built):
            for number in sorted(set(numbers)):
                place = built.places[number]
                built.net.forward(start, place)
                found[number] = self._tops(built, number)
                start = place + 1
        return [found[number] for number in numbers]

    def _tops(self, built: Built, number: int) -> list[np.ndarray]:
        tops = [built.net.blobs[name].cpu_data().copy() for name in built.tops(number)]
        layer = built.layer(number)
        if not tops:
            message = f"layer {layer.name!r} ({layer.param.type}) has no outputs"
            raise error(message)
        if layer.param.type == "DetectionOutput":
            images = built.net.blobs[built.bottoms(number)[0]].shape[0]
            keep = layer.param.detection_output_param.keep_top_k
            return [filled_up(tops[0], images, keep)]
        return tops

    @contextmanager
    def _timed(self, built: Built) -> Iterator[None]:
        """Note how long layers take, where that does not make a device wait."""
        net = built.net
        watch = Stopwatch(net.plan, net.synchronize) if net.device.shares_host else None
        begin = perf_counter_ns()
        with watch or nullcontext():
            yield
        total = perf_counter_ns() - begin
        seconds = [0.0 if watch is None else watch.forward[i] for i in built.places[1:]]
        self.timings = (total, [1e9 * s for s in seconds])

    def shapes(self, inputs: Sequence[Shape]) -> list[tuple[list[Shape], list[Shape]]]:
        """Return for each layer the shapes of what it reads and gives; computes nothing.

        Args:
            inputs: The shape of each input.

        Raises:
            error: There are more or fewer inputs.
        """
        names = self.imported.inputs
        if len(inputs) != len(names):
            message = f"the inputs are {', '.join(names)}; given are {len(inputs)} shapes"
            raise error(message)
        by_name = dict(zip(names, inputs, strict=True))
        self.build(by_name)
        built = self.ready()
        blobs = built.net.blobs
        for name, shape in by_name.items():
            blobs[name].reshape(shape)
        built.net.reshape()
        pairs = [(list(inputs), list(inputs))]
        for number in range(1, len(built.places)):
            sides = (built.bottoms(number), built.tops(number))
            read, made = ([blobs[name].shape for name in side] for side in sides)
            pairs.append((read, made))
        return pairs
