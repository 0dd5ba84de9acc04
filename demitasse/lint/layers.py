"""Rules about single layers and their neighbours."""

from __future__ import annotations

from collections import Counter

from demitasse.core.text import suggestion
from demitasse.graph import moved_weight
from demitasse.io.proto import LayerParameter, fork_of_type
from demitasse.layers.metadata import given
from demitasse.lint.view import IN_PHASE, View

__all__ = ["RULES"]


def duplicate_names(view: View) -> None:
    """Weights are found by layer name, so two layers of one name get the same file's weights."""
    counts = Counter(layer.name for layer in view.layers)
    seen: set[str] = set()
    for index, layer in enumerate(view.layers):
        if counts[layer.name] > 1 and layer.name in seen:
            message = "another layer has this name, too; weights in files belong to names"
            view.say("warning", "duplicate-name", index, message)
        seen.add(layer.name)


def known_types() -> frozenset[str]:
    """Return the types that a layer class implements."""
    from demitasse.layers.registry import layer_types

    return frozenset(layer_types())


def unknown_types(view: View) -> None:
    """Types that no layer class implements."""
    known = known_types()
    for index, layer in enumerate(view.layers):
        if layer.type not in known:
            forks = fork_of_type(layer.type)
            origin = f"; it comes from {forks}" if forks else suggestion(layer.type, known)
            message = f"there is no layer type {layer.type!r}{origin}"
            view.say("error", "unknown-type", index, message)


def unused_blobs(view: View) -> None:
    """Blobs nobody reads, in nets that have a loss to work towards."""
    if not view.losses:
        return
    known = known_types()
    for index, layer in enumerate(view.layers):
        facts = view.facts[index]
        if index in view.losses or facts.result or not (facts.known or layer.type in known):
            continue
        for blob, readers in zip(layer.top, view.readers[index], strict=True):
            if not readers:
                message = (
                    f"no layer reads its top {blob!r}{IN_PHASE}; remove it, or end it in a Silence "
                    "layer (it is printed as an output of the net)"
                )
                view.say("warning", "unused-blob", index, message)


def batch_norm(view: View) -> None:
    """Statistics are not learned; averages of batches do not belong in a test."""
    for index, layer in view.of_type("BatchNorm"):
        param = layer.batch_norm_param
        roles = [one.role for one in view.facts[index].params_of(layer, view.phase)]
        scaled = "scale" in roles  # NVCaffe's, whose files have the rates of scale and bias first
        rates = [
            spec.lr_mult
            for spec, role in zip(layer.param, roles, strict=False)
            if role == "average"
        ]
        if any(rates) and not scaled:
            message = (
                "lr_mult of BatchNorm must be 0 (its blobs are averages, not learned); leave the "
                "param entries out"
            )
            view.say("error", "batch-norm-lr", index, message)
        if param.HasField("use_global_stats"):
            if view.phase == "TRAIN" and param.use_global_stats and view.losses:
                message = "use_global_stats: true in TRAIN: its averages stay what they are"
                view.say("note", "batch-norm-stats", index, message)
            if view.phase == "TEST" and not param.use_global_stats:
                message = (
                    "use_global_stats: false in TEST: results depend on what else is in the batch; "
                    "leave it out, the phase decides"
                )
                view.say("warning", "batch-norm-stats", index, message)
        following = {view.layers[reader].type for reader in view.readers_of(index)}
        if following and not following & {"Scale", "Bias"} and not param.scale_bias:
            message = "no Scale follows, so there is no learned factor and shift"
            view.say("note", "batch-norm-scale", index, message)


def bias_before_batch_norm(view: View) -> None:
    """A bias that the next layer subtracts again."""
    for index, layer in enumerate(view.layers):
        facts = view.facts[index]
        roles = {one.role for one in facts.params_of(layer, view.phase)}
        following = {view.layers[reader].type for reader in view.readers_of(index)}
        if following == {"BatchNorm"} and facts.num_output and "bias" in roles:
            message = "BatchNorm follows and subtracts the bias again; bias_term: false saves it"
            view.say("note", "useless-bias", index, message)


def zero_weights(view: View) -> None:
    """Weights begin at 0 without a filler, and then all units compute the same."""
    if view.phase != "TRAIN" or not view.losses:
        return
    for index, layer in enumerate(view.layers):
        params = view.facts[index].params_of(layer, view.phase)
        fillers = {one.filler for one in params if one.role == "weight"}
        if not layer.blobs and any(not given(layer, filler) for filler in fillers):
            message = (
                "without a weight_filler its weights begin at 0 (unless they are loaded), and all "
                'its units compute the same; add e.g. weight_filler { type: "xavier" }'
            )
            view.say("warning", "zero-weights", index, message)


def overwritten_outputs(view: View) -> None:
    """An in-place layer destroys what a layer before it computes its gradient from."""
    if view.phase != "TRAIN":
        return
    told: set[int] = set()
    for index, layer in enumerate(view.layers):
        for bottom, (below, above) in enumerate(zip(layer.bottom, layer.top, strict=False)):
            if below != above:
                continue
            for writer, top in view.writers(index, bottom):
                if writer not in told and _needs(view, writer, top, index):
                    told.add(writer)
                    message = (
                        f"it works in place on the output of {view.layers[writer].name!r} "
                        f"({view.layers[writer].type}), which needs it for its gradient; give it "
                        "another top"
                    )
                    view.say("error", "in-place", index, message)


def _needs(view: View, writer: int, top: int, index: int) -> bool:
    """Whether the backward of a layer needs what another overwrites in place."""
    reads = view.facts[writer].reads_in_backward(view.layers[writer], view.phase)
    if reads & {"tops", ("first top", "second top", "")[min(top, 2)]}:
        return True
    kept = view.facts[index].preserves_sign.is_met(view.layers[index], view.phase)
    return "signs" in reads and not kept


def losses_of_losses(view: View) -> None:
    """A loss that contains a layer which was put before it, too; or a ReLU before a loss."""
    for index in range(len(view.layers)):
        contained = view.facts[index].contains
        source = view.sources[index][0] if view.sources[index] else None
        if not contained or source is None:
            continue
        kind = view.layers[source].type
        if kind in contained:
            message = (
                f"it contains the {kind} that {view.layers[source].name!r} is; take that away in "
                "training"
            )
            view.say("warning", "twice", index, message)
        elif kind == "ReLU":
            message = (
                f"ReLU {view.layers[source].name!r} right before it leaves no negative scores; "
                "usually the last layer before a loss has no activation"
            )
            view.say("warning", "relu-before-loss", index, message)


def weighted_and_read(view: View) -> None:
    """A loss weight is on a top that other layers read; the weight moves, and others are lost."""
    for index, layer in enumerate(view.layers):
        for blob, weight, readers in zip(
            layer.top, layer.loss_weight, view.readers[index], strict=False
        ):
            if weight and readers:
                view.say("warning", "moved-weight", index, moved_weight(blob))


def dropout_only_in_test(view: View) -> None:
    """Dropout does nothing in TEST."""
    for index, layer in view.of_type("Dropout"):
        p = layer.dropout_param
        if _phases(layer) == {"TEST"} and p.scale_train and not p.sample_weights_test:
            message = "it is there in TEST only, where Dropout does nothing"
            view.say("warning", "dropout-in-test", index, message)


def frozen(view: View) -> None:
    """Training with every learning rate at 0."""
    if view.phase != "TRAIN" or not view.losses:
        return
    rates: dict[int, list[float]] = {}
    for index, layer in enumerate(view.layers):
        if not view.facts[index].known:
            return  # it may learn
        for place, one in enumerate(view.facts[index].params_of(layer, view.phase)):
            if one.role != "average":
                rate = layer.param[place].lr_mult if place < len(layer.param) else 1.0
                rates.setdefault(index, []).append(rate)
    if rates and not any(any(rate) for rate in rates.values()):
        message = "this layer and all others have lr_mult: 0, so nothing is learned"
        view.say("warning", "all-frozen", next(iter(rates)), message)


def _phases(layer: LayerParameter) -> set[str]:
    """Return the phases that include rules name; both where there are none."""
    if not layer.include or not all(rule.HasField("phase") for rule in layer.include):
        return {"TRAIN", "TEST"}
    return {"TEST" if rule.phase else "TRAIN" for rule in layer.include}


RULES = (
    unknown_types,
    duplicate_names,
    overwritten_outputs,
    batch_norm,
    unused_blobs,
    zero_weights,
    losses_of_losses,
    weighted_and_read,
    dropout_only_in_test,
    frozen,
    bias_before_batch_norm,
)
