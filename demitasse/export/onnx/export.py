"""The way from a net to a file of ONNX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from demitasse.device import Device
from demitasse.errors import ConfigError, DemitasseError, NetError
from demitasse.export.onnx.files import Model, check_model, write_model
from demitasse.export.onnx.half import to_half
from demitasse.export.onnx.library import library
from demitasse.export.onnx.model import model_of
from demitasse.export.onnx.preprocess import Preprocess
from demitasse.export.onnx.table import ANY_SIZE, reason_against
from demitasse.export.request import Shapes, reduce_net
from demitasse.export.sizes import Free, Sizes, declared_sizes, free_sizes
from demitasse.export.walk import Walk, walk
from demitasse.net import Net
from demitasse.net.given import several
from demitasse.proto import NetParameter
from demitasse.testing.tolerances import tolerance

if TYPE_CHECKING:
    import numpy as np

    from demitasse.testing.comparison import Comparison

__all__ = ["OPSETS", "Exported", "Preprocess", "export_onnx"]

OPSETS = range(13, 23)
"""Versions of the operators that can be asked for."""

OPSET = 17
"""The version that is used where none is asked for."""

Batch = int | Literal["dynamic", "fixed"] | None
"""A free batch, one of a size, that of the net, or a free one where that can be."""


@dataclass
class Exported:
    """A file of ONNX that was written.

    Attributes:
        files: The file, and the one beside it where constants are too large for one.
        opset: Version of its operators.
        inputs: Name of each input -> its sizes; a free one is a formula.
        outputs: The same of each output.
        notes: What was left out or assumed, in words.
        dtype: What it computes in: "float32" or "float16".
        net: The net that was written, with its weights.
        walk: Which value of the net is called what in the file.
        preprocess: What the file does to images first.
    """

    files: list[Path]
    opset: int
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    notes: list[str]
    dtype: str
    net: Net
    walk: Walk
    preprocess: Preprocess | None

    def compare(self, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Comparison:
        """Run the file by ONNX Runtime, and hold it against the net, layer by layer.

        Args:
            inputs: An array for each input of the file; None for random ones.
            seed: What random ones are made from.

        Raises:
            DataError: ONNX Runtime cannot load the file, or not run it.
            DemitasseError: It is not installed.
        """
        from demitasse.export.onnx.check import check_file

        return check_file(self.files[0], self.net, self.walk, self.preprocess, inputs, seed)


def export_onnx(
    net: str | os.PathLike[str] | NetParameter | Net,
    weights: Any,
    path: str | os.PathLike[str],
    *,
    outputs: Sequence[str] = (),
    only: bool = False,
    batch: Batch = None,
    any_size: bool = False,
    shapes: Shapes | None = None,
    opset: int = OPSET,
    float16: bool = False,
    preprocess: Preprocess | None = None,
    check: bool = False,
    level: int = 0,
    stages: Sequence[str] = (),
    device: str | Device | None = None,
) -> Exported:
    """Write a net of phase TEST to a file of ONNX.

    Inputs, outputs and nodes are called as blobs and layers are. Losses, metrics and layers that
    read data have no place in it: the last become inputs.

    Args:
        net: A prototxt file, a message, or a net, whose parameters are used then.
        weights: Files or messages to load parameters from; one, several, or None.
        path: The file to write.
        outputs: Names of blobs that are outputs, too.
        only: Whether those are the only outputs, and what they do not need is left out.
        batch: "dynamic" for a free first axis of every input; a number, or "fixed" for that of the
            net; None: free where the net allows it.
        any_size: Whether images may have any height and width, of a net without fully connected
            layers. The batch is free then.
        shapes: Shapes of inputs, in place of those that the net has for them; and of other blobs
            that are to be inputs, in place of the layers that compute them.
        opset: Version of the operators, one of ``OPSETS``.
        float16: Whether numbers inside the file have 16 bits; inputs and outputs keep 32.
        preprocess: What the file does to images first.
        check: Whether the file is run by ONNX Runtime on random inputs and held against the net.
        level: Level of the net's state.
        stages: Stages of the net's state.
        device: Where the net runs; None asks the configuration.

    Returns:
        What was written.

    Raises:
        NetError: Some layers have no form in ONNX: all are named, and nothing is written. Or the
            net takes no other batch, and a free one is asked for. Or, with ``check``, the file
            computes something else than the net.
        ConfigError: An argument has a value it cannot have.
        DemitasseError: onnx is not installed, or a file cannot be read.
    """
    library("onnx")
    _check_opset(opset)
    if check:
        library("onnxruntime")
    files = tuple(several(weights))
    _check_together(net, files, batch, any_size=any_size)
    reduced = reduce_net(
        net, reason_against, weights=files, outputs=outputs, only=only, shapes=shapes,
        level=level, stages=stages,
    )  # fmt: skip
    notes = reduced.notes
    given = net if isinstance(net, Net) else None
    made = Net(
        reduced.message,
        device=given.device if given is not None and device is None else device,
        dtype="float32" if given is None else given.dtype,
        base_dir=reduced.base_dir,
    )
    _give_weights(made, given, files, notes)
    _set_batch(made, batch)
    extra = () if only else outputs
    model, found = _written(made, extra, batch, opset, preprocess, notes, any_size=any_size)
    if float16:
        to_half(model)
    check_model(model)
    graph = model.message.graph
    result = Exported(
        files=write_model(model, Path(path)),
        opset=opset,
        inputs={one.name: _sizes(one) for one in graph.input},
        outputs={one.name: _sizes(one) for one in graph.output},
        notes=notes,
        dtype="float16" if float16 else "float32",
        net=made,
        walk=found,
        preprocess=preprocess,
    )
    if check:
        _need_agreement(result)
    return result


def _check_together(net: object, files: Sequence[object], batch: Batch, *, any_size: bool) -> None:
    """Refuse arguments that contradict each other.

    Raises:
        ConfigError: Some do.
    """
    if isinstance(net, Net) and files:
        message = "a net has its own weights; load files into it, and give None for weights"
        raise ConfigError(message)
    if any_size and batch not in {None, "dynamic"}:
        message = f"where images may have any size the batch is free; it cannot be {batch!r}"
        raise ConfigError(message)


def _give_weights(made: Net, given: Net | None, files: Sequence[Any], notes: list[str]) -> None:
    """Load parameters, and note which layers got none."""
    missing = set(made.params)
    if given is not None:
        made.share_trained_layers_with(given)
        missing -= set(given.params)
    for one in files:
        missing &= set(made.load(one).missing)
    notes += [
        f"no file has weights for layer {name!r}; it has those it was made with"
        for name in made.params
        if name in missing
    ]


def _need_agreement(result: Exported) -> None:
    """Refuse a file that computes something else than the net.

    Raises:
        NetError: It does; names the first layer, and the worst.
    """
    found = result.compare()
    for one in found.all:
        allowed = tolerance(result.dtype, one.type)
        if not one.relative <= allowed:
            message = (
                f"{result.files[0]} parts from the net (allowed {allowed:.1e}) at "
                f"{found.explain(one)}; worst: {found.worst}"
            )
            raise NetError(message)


def _check_opset(opset: int) -> None:
    newest = library("onnx").defs.onnx_opset_version()
    if opset not in OPSETS or opset > newest:
        message = (
            f"opset must be from {OPSETS[0]} to {min(OPSETS[-1], newest)}, it is {opset}; "
            f"{OPSET} is widely read"
        )
        raise ConfigError(message)


def _set_batch(net: Net, batch: Batch) -> None:
    """Give the inputs the batch that is asked for: all whose first axis is the first one's.

    Raises:
        ConfigError: It is no number above 0 and no word that is known.
    """
    if batch in {None, "dynamic", "fixed"}:
        return
    if not isinstance(batch, int) or batch < 1:
        message = f"batch must be a number above 0, 'dynamic' or 'fixed', not {batch!r}"
        raise ConfigError(message)
    names = [name for name in net.inputs if net.blobs[name].num_axes]
    own = {name: net.blobs[name].shape for name in names}
    for name in names:
        if own[name][0] == own[names[0]][0]:
            net.blobs[name].reshape((batch, *own[name][1:]))
    net.reshape()


def _written(
    net: Net,
    outputs: Sequence[str],
    batch: Batch,
    opset: int,
    how: Preprocess | None,
    notes: list[str],
    *,
    any_size: bool,
) -> tuple[Model, Walk]:
    """Return the model, and the walk it was made of; with a free batch where that can be."""

    def write(sizes: Sizes) -> tuple[Model, Walk]:
        found = walk(net, sizes, outputs)
        if not found.outputs:
            message = "nothing is left to export: no layer computes an output"
            raise NetError(message)
        return model_of(found, net.name, opset, how), found

    with net.at_work("export"):
        if any_size:
            sizes = free_sizes(net, any_size=True)
            _need_any_size(walk(net, sizes, outputs))
            return write(sizes)
        if batch in {None, "dynamic"}:
            try:
                free = write(free_sizes(net))
            except DemitasseError as error:
                if batch == "dynamic":
                    raise
                fixed = write(declared_sizes(net))
                notes.append(f"the batch is fixed: {error}")
                return fixed
            notes += [
                f"input {value.name!r} keeps its first axis of {value.sizes[0]}"
                for value in free[1].inputs
                if value.sizes and isinstance(value.sizes[0], int)
            ]
            return free
        return write(declared_sizes(net))


def _need_any_size(found: Walk) -> None:
    """Refuse layers that are written for one size of images.

    Raises:
        NetError: There are some; all are named.
    """
    faults = [
        step.place.called
        for step in found.steps
        if step.layer.type not in ANY_SIZE
        and any(isinstance(size, Free) for one in step.bottoms for size in one.sizes[1:])
    ]
    if faults:
        message = f"images cannot have any size: {', '.join(faults)} can be written for one alone"
        raise NetError(message)


def _sizes(info: Any) -> list[int | str]:
    return [one.dim_param or one.dim_value for one in info.type.tensor_type.shape.dim]
