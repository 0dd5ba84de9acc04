"""The net that is exported, with its weights, and its walk, with a free batch where that can be."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from demitasse.core.device import Device
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError
from demitasse.interop.export.request import Reason, Shapes, reduce_net
from demitasse.interop.export.sizes import Sizes, declared_sizes, free_sizes
from demitasse.interop.export.walk import Walk, walk
from demitasse.io.proto import NetParameter
from demitasse.net import Net

__all__ = ["Batch", "made_net", "with_free_batch", "written"]

Batch = int | Literal["dynamic", "fixed"] | None
"""A free batch, one of a size, that of the net, or a free one where that can be."""

W = TypeVar("W")


def made_net(
    net: str | os.PathLike[str] | NetParameter | Net,
    files: Sequence[Any],
    reason: Reason,
    *,
    outputs: Sequence[str] = (),
    only: bool = False,
    batch: Batch = None,
    shapes: Shapes | None = None,
    level: int = 0,
    stages: Sequence[str] = (),
    device: str | Device | None = None,
) -> tuple[Net, list[str]]:
    """Reduce a net to what is exported, and give it its weights and its batch.

    Args:
        net: A prototxt file, a message, or a net, whose parameters are used then.
        files: Files or messages to load parameters from.
        reason: Why a layer cannot be exported.
        outputs: Names of blobs that are outputs, too.
        only: Whether those are the only outputs, and what they do not need is left out.
        batch: Items in a batch.
        shapes: Shapes of inputs, and of other blobs that are to be inputs.
        level: Level of the net's state.
        stages: Stages of the net's state.
        device: Where the net runs; None asks the configuration.

    Returns:
        The net, and what was left out or assumed, in words.

    Raises:
        NetError: Some layers cannot be exported: all are named.
        ConfigError: An argument has a value it cannot have.
        DemitasseError: A file cannot be read.
    """
    if isinstance(net, Net) and files:
        message = "a net has its own weights; load files into it, and give None for weights"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="weights")
    reduced = reduce_net(
        net, reason, weights=files, outputs=outputs, only=only, shapes=shapes,
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
    return made, notes


def written(
    net: Net, outputs: Sequence[str], sizes: Sizes, write: Callable[[Walk], W]
) -> tuple[W, Walk]:
    """Walk a net and write it down.

    Raises:
        NetError: No layer computes an output.
    """
    found = walk(net, sizes, outputs)
    if not found.outputs:
        message = "nothing is left to export: no layer computes an output"
        raise NetError(message, code=ErrorCode.MISSING, field="outputs")
    return write(found), found


def with_free_batch(
    net: Net, outputs: Sequence[str], batch: Batch, notes: list[str], write: Callable[[Walk], W]
) -> tuple[W, Walk]:
    """Write a net down, with a free batch where that is asked for or can be.

    Args:
        net: The net.
        outputs: Names of blobs that are outputs besides those of the net.
        batch: Items in a batch.
        notes: Gets a line for what keeps its size.
        write: Writes a walk down.
    """
    if batch not in {None, "dynamic"}:
        return written(net, outputs, declared_sizes(net), write)
    try:
        free = written(net, outputs, free_sizes(net), write)
    except DemitasseError as error:
        if batch == "dynamic":
            raise
        fixed = written(net, outputs, declared_sizes(net), write)
        notes.append(f"the batch is fixed: {error}")
        return fixed
    notes += [
        f"input {value.name!r} keeps its first axis of {value.sizes[0]}"
        for value in free[1].inputs
        if value.sizes and isinstance(value.sizes[0], int)
    ]
    return free


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


def _set_batch(net: Net, batch: Batch) -> None:
    """Give the inputs the batch that is asked for: all whose first axis is the first one's.

    Raises:
        ConfigError: It is no number above 0 and no word that is known.
    """
    if batch in {None, "dynamic", "fixed"}:
        return
    if not isinstance(batch, int) or batch < 1:
        message = f"batch must be a number above 0, 'dynamic' or 'fixed', not {batch!r}"
        raise ConfigError(message, code=ErrorCode.INVALID, field="batch", got=batch)
    names = [name for name in net.inputs if net.blobs[name].num_axes]
    own = {name: net.blobs[name].shape for name in names}
    for name in names:
        if own[name][0] == own[names[0]][0]:
            net.blobs[name].reshape((batch, *own[name][1:]))
    net.reshape()
