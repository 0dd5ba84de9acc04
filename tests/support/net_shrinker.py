"""Shrinker of failing cases: a smaller net and fewer passes that fail in the same way."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from net_case import Case, Input, Layer, NetSpec
from net_workers import Worker

__all__ = ["shrink"]


def shrink(case: Case, kind: str, seconds: float = 120, worker: Worker | None = None) -> Case:
    """Return a smaller case whose failure is of the same kind.

    Args:
        case: A case that fails.
        kind: Kind of its failure, as an outcome gives it.
        seconds: Time after which the smallest so far is taken.
        worker: Where cases run; None for a child process of its own.
    """
    worker = worker or Worker(timeout=60)
    end = time.monotonic() + seconds

    def fails(candidate: Case) -> bool:
        failure = worker.run(candidate)["failure"]
        return failure is not None and failure[0] == kind

    try:
        progress = True
        while progress and time.monotonic() < end:
            progress = False
            for candidates in (_fewer_steps, _plainer, _fewer_layers, _smaller):
                found = _descend(case, candidates, fails, end)
                progress = progress or found is not case
                case = found
    finally:
        worker.close()
    return case


def _descend(
    case: Case,
    candidates: Callable[[Case], Iterator[Case]],
    fails: Callable[[Case], bool],
    end: float,
) -> Case:
    """Take the first candidate that fails, and begin again from that."""
    again = True
    while again:
        again = False
        for candidate in candidates(case):
            if time.monotonic() > end:
                return case
            if candidate != case and fails(candidate):
                case, again = candidate, True
                break
    return case


def _fewer_steps(case: Case) -> Iterator[Case]:
    steps = case.scenario.steps
    size = max(1, len(steps) // 2)
    while size:
        for begin in range(0, len(steps), size):
            fewer = steps[:begin] + steps[begin + size :]
            if fewer:
                yield replace(case, scenario=replace(case.scenario, steps=fewer))
        size //= 2


def _plainer(case: Case) -> Iterator[Case]:
    scenario = case.scenario
    if case.other is not None:
        steps = tuple(step for step in scenario.steps if step[0] != "other")
        yield replace(case, other=None, scenario=replace(scenario, steps=steps))
    if case.net.force_backward:
        yield replace(case, net=replace(case.net, force_backward=False))
    for change in (
        {"shapes": ()}, {"solver": ""}, {"feed": "data"}, {"keep": None, "read_all": True},
        {"keep": "outputs"}, {"phase": "TEST"}, {"read_all": True},
        {"batches": 1},
    ):  # fmt: skip
        if change.get("shapes") == () and any(step[0] == "shape" for step in scenario.steps):
            continue
        if scenario.keep is None and "keep" in change:
            continue
        yield replace(case, scenario=replace(scenario, **change))
    for index, (action, value) in enumerate(scenario.steps):
        fewer = {"threads": 1}.get(action, 0)
        if isinstance(value, int) and value > fewer:
            steps = (*scenario.steps[:index], (action, fewer), *scenario.steps[index + 1 :])
            yield replace(case, scenario=replace(scenario, steps=steps))


# -- layers --------------------------------------------------------------------------------------


def _fewer_layers(case: Case) -> Iterator[Case]:
    layers = case.net.layers
    count = len(layers)
    size = count // 2
    while size:  # the end
        yield from _of(case, layers[: count - size])
        size //= 2
    shapes = _shapes(case.net)
    for index in reversed(range(count)):  # the begin: a blob becomes an input
        layer = layers[index]
        if len(layer.tops) == 1 and layer.tops[0] in shapes and layer.bottoms != layer.tops:
            given = Input(layer.tops[0], shapes[layer.tops[0]])
            yield from _of(case, _needed(layers[:index] + layers[index + 1 :], given), given)
    for index, layer in enumerate(layers):
        yield from _of(case, _without(layers, layer, index))


def _needed(layers: tuple[Layer, ...], given: Input) -> tuple[Layer, ...]:
    """Return the layers that do not lead to the input alone."""
    needed = []
    wanted: set[str] = set()
    for layer in reversed(layers):
        follows = any(top in wanted for top in layer.tops)
        if follows or _reads(layers, given.name, layer):
            needed.append(layer)
            wanted.update(layer.bottoms)
    return tuple(reversed(needed))


def _reads(layers: tuple[Layer, ...], name: str, layer: Layer) -> bool:
    """Return whether a layer depends on a blob."""
    reached = {name}
    for one in layers:
        if reached & set(one.bottoms):
            reached.update(one.tops)
            if one is layer:
                return True
    return False


def _without(layers: tuple[Layer, ...], layer: Layer, index: int) -> tuple[Layer, ...]:
    """Return the layers without one: its readers read its first bottom."""
    rest = []
    names = dict.fromkeys(layer.tops, layer.bottoms[0]) if layer.bottoms else {}
    for number, one in enumerate(layers):
        if number == index:
            continue
        if number > index:
            tops = one.tops
            if one.bottoms[:1] == one.tops:  # in place
                tops = (names.get(tops[0], tops[0]),)
            bottoms = tuple(names.get(name, name) for name in one.bottoms)
            one = replace(one, bottoms=bottoms, tops=tops)  # noqa: PLW2901
        rest.append(one)
    return tuple(rest)


def _of(case: Case, layers: tuple[Layer, ...], *more: Input) -> Iterator[Case]:
    if not layers:
        return
    read = {name for layer in layers for name in layer.bottoms}
    names = {one.name for one in more}
    inputs = (*(one for one in case.net.inputs if one.name not in names), *more)
    inputs = tuple(one for one in inputs if one.name in read)
    shapes = tuple(
        {name: shape for name, shape in one.items() if name in read} for one in case.scenario.shapes
    )
    if more and shapes:
        return
    scenario = case.scenario
    if isinstance(scenario.keep, tuple):
        made = {top for layer in layers for top in layer.tops}
        scenario = replace(scenario, keep=tuple(name for name in scenario.keep if name in made))
    if inputs:
        net = replace(case.net, inputs=inputs, layers=layers)
        yield replace(case, net=net, scenario=replace(scenario, shapes=shapes))


def _shapes(net: NetSpec) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of a net's blobs, which portable code gives them."""
    import tempfile
    from pathlib import Path

    import demitasse as dm

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.prototxt"
        path.write_text(net.prototxt())
        try:
            made = dm.Net(path, phase="TEST", device="numpy", optimize=False)
        except dm.DemitasseError:
            return {}
        return {name: made.blobs[name].shape for name in made.blobs}


# -- numbers -------------------------------------------------------------------------------------


def _smaller(case: Case) -> Iterator[Case]:
    net = case.net
    if not case.scenario.shapes:
        batch = net.inputs[0].shape[0]
        for fewer in _fewer(batch, 1):
            inputs = tuple(
                replace(one, shape=(fewer, *one.shape[1:])) if one.shape[0] == batch else one
                for one in net.inputs
            )
            yield replace(case, net=replace(net, inputs=inputs))
        for index, one in enumerate(net.inputs):
            for axis in range(1, len(one.shape)):
                for fewer in _fewer(one.shape[axis], 1):
                    shape = (*one.shape[:axis], fewer, *one.shape[axis + 1 :])
                    changed = replace(one, shape=shape)
                    inputs = (*net.inputs[:index], changed, *net.inputs[index + 1 :])
                    yield replace(case, net=replace(net, inputs=inputs))
    for index, layer in enumerate(net.layers):
        for fields in _smaller_fields(layer.fields):
            layers = (*net.layers[:index], replace(layer, fields=fields), *net.layers[index + 1 :])
            yield replace(case, net=replace(net, layers=layers))


def _smaller_fields(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            for smaller in _smaller_fields(value):
                yield {**fields, name: smaller}
        elif name in ("num_output", "group", "local_size"):
            for fewer in _fewer(value, 1):
                yield {**fields, name: fewer}
        elif name not in ("pool", "kernel_size", "kernel_h", "kernel_w", "axis"):
            yield {key: one for key, one in fields.items() if key != name}


def _fewer(number: int, least: int) -> Iterator[int]:
    for fewer in dict.fromkeys((least, number // 2, number * 3 // 4 // 16 * 16, number - 1)):
        if least <= fewer < number:
            yield fewer
