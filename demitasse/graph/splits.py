"""Split layers: a copy of a blob for each of the several layers that read it.

Each reader then has its own gradient, and a Split layer sums them.

Source: Caffe, ``src/caffe/util/insert_splits.cpp``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy

from demitasse.core.text import suggestion
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.graph.filter import MOST, raise_faults
from demitasse.io.proto import LayerParameter, NetParameter

Top = tuple[int, int]  # (layer, top) that produced a version of a blob


def split_layer_name(layer: str, blob: str, top: int) -> str:
    """Return the name of the Split layer after a top."""
    return f"{blob}_{layer}_{top}_split"


def split_blob_name(layer: str, blob: str, top: int, copy: int) -> str:
    """Return the name of one copy of a top."""
    return f"{split_layer_name(layer, blob, top)}_{copy}"


def insert_splits(net: NetParameter, origins: Sequence[str] = ()) -> tuple[NetParameter, list[int]]:
    """Return a copy of ``net`` with Split layers where a top has more than one use.

    A top used in place is a new version of its blob and counts for itself. A loss weight counts as
    a use and moves to the first copy; then the layer loses all its loss weights, as in Caffe. The
    second result has for each layer the index of the layer it comes from; -1 for splits.
    """
    sources = producers(net, origins)
    uses: Counter[Top] = Counter(sources.values())
    weights = _weights(net)
    uses.update(weights.keys())

    split = deepcopy(net)
    del split.layer[:]
    origin: list[int] = []
    next_copy: dict[Top, int] = defaultdict(int)
    for i, layer in enumerate(net.layer):
        copy = split.layer.add()
        copy.CopyFrom(layer)
        origin.append(i)
        for j, blob in enumerate(layer.bottom):
            top = sources[i, j]
            if uses[top] > 1:
                producer = net.layer[top[0]].name
                copy.bottom[j] = split_blob_name(producer, blob, top[1], next_copy[top])
                next_copy[top] += 1
        for j, blob in enumerate(layer.top):
            count = uses[i, j]
            if count > 1:
                weight = weights.get((i, j), 0.0)
                name = split_layer_name(layer.name, blob, j)
                tops = [split_blob_name(layer.name, blob, j, number) for number in range(count)]
                splitter = LayerParameter(name=name, type="Split", bottom=[blob], top=tops)
                if weight:
                    splitter.loss_weight.extend([weight] + [0.0] * (count - 1))
                    copy.ClearField("loss_weight")
                    next_copy[i, j] += 1
                split.layer.append(splitter)
                origin.append(-1)
    return split, origin


def without_splits(net: NetParameter) -> NetParameter:
    """Return a copy of ``net`` in which layers read what their Split layers copied."""
    names = {top: layer.bottom[0] for layer in net.layer if layer.type == "Split" and layer.bottom
             for top in layer.top}  # fmt: skip
    plain = deepcopy(net)
    del plain.layer[:]
    for layer in (one for one in net.layer if one.type != "Split"):
        copy = plain.layer.add()
        copy.CopyFrom(layer)
        copy.bottom[:] = [names.get(blob, blob) for blob in layer.bottom]
    return plain


def moved_weights(net: NetParameter) -> Iterator[Top]:
    """Yield the tops with a loss weight that are read, too: ``insert_splits`` moves the weight."""
    read = set(producers(net).values())
    return (top for top in _weights(net) if top in read)


def moved_weight(blob: str) -> str:
    """Return what is to be said of a top with a loss weight that is read, too."""
    return (
        f"its top {blob!r} has a loss weight and is read by another layer; as in Caffe, the weight "
        "then moves to a copy of the top, the layer's other loss weights are forgotten, and a loss "
        "layer gets back the weight 1; to have what is written, set this weight to 0 and give it "
        'to a layer of type "Power" that reads the top, and whose own top nobody reads'
    )


def _weights(net: NetParameter) -> dict[Top, float]:
    """Return the loss weights of tops, where not 0."""
    return {
        (i, j): weight
        for i, layer in enumerate(net.layer)
        for j, weight in enumerate(list(layer.loss_weight)[: len(layer.top)])
        if weight
    }


def producers(net: NetParameter, origins: Sequence[str] = ()) -> dict[tuple[int, int], Top]:
    """Return, for each (layer, bottom), the (layer, top) that produced what it reads."""
    latest: dict[str, Top] = {}
    sources: dict[tuple[int, int], Top] = {}
    faults: list[DemitasseError] = []
    for i, layer in enumerate(net.layer):
        for j, blob in enumerate(layer.bottom):
            if blob in latest:
                sources[i, j] = latest[blob]
            else:
                message = f"unknown bottom blob {blob!r} (layer {layer.name!r}, bottom index {j})"
                if len(faults) < MOST:  # a hint compares all names, and no others are listed
                    message += f": {_hint(net, blob, i, latest)}"
                error = NetError(message, code=ErrorCode.UNKNOWN, layer=layer.name, blob=blob)
                faults.append(error.from_line(origins[i] if origins else ""))
        for j, blob in enumerate(layer.top):
            latest[blob] = (i, j)
    raise_faults(faults)
    return sources


def _hint(net: NetParameter, blob: str, reader: int, before: Iterable[str]) -> str:
    for layer in net.layer[reader:]:
        if blob in layer.top:
            return f"layer {layer.name!r} produces it only later; move it before its reader"
    return f"no layer that takes part in this phase produces it{suggestion(blob, before)}"
