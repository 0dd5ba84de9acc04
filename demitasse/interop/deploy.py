"""Deploy nets: a training net in phase TEST, with inputs for data and scores for losses.

Source: the files ``train_val.prototxt`` and ``deploy.prototxt`` of Caffe's models.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse.errors import ConfigError, ErrorCode
from demitasse.graph import filter_phase
from demitasse.interop.export.reduction import Shapes, is_source, is_training_only, reduce_net
from demitasse.io.proto import LayerParameter, NetParameter
from demitasse.layers.metadata import layer_metadata
from demitasse.net.build import read_source

AXES = {"InfogainLoss": "infogain_loss_param"}
"""Losses with a softmax whose axis is in another message than softmax_param."""

SCORES = {"Softmax", "Sigmoid"}
"""Layers that turn scores into probabilities."""

PAIRS = {"ContrastiveLoss", "TripletLoss"}
"""Losses whose bottoms with a gradient are all outputs of the net."""

DETECTION = {"MultiBoxLoss", "BoxAnnotatorOHEM", "ProposalTarget"}
"""Layers for the training of detectors, whose deploy nets have further layers."""

FILLERS = ("weight_filler", "bias_filler")


@dataclass
class DeployNet:
    """A deploy net.

    Attributes:
        notes: Removed and replaced layers, in words.
        tested: The training net's layers of phase TEST.
    """

    message: NetParameter
    notes: list[str]
    outputs: list[str]
    tested: list[LayerParameter]


def deploy_net(
    source: Path,
    weights: Sequence[Path] = (),
    *,
    shapes: Shapes | None = None,
    level: int = 0,
    stages: Sequence[str] = (),
) -> DeployNet:
    """Return the deploy net of a training net.

    Data layers become Input layers of one item. SoftmaxWithLoss and SigmoidCrossEntropyLoss become
    Softmax and Sigmoid; other losses, metrics, layers of labels alone and auxiliary classifiers
    are left out, and so are fillers and learning rates.

    Args:
        source: The prototxt of the training.
        weights: Files of weights, read for the number of channels of images.
        shapes: Shapes of inputs, in place of those of the data.
        level: Level of the net's state.
        stages: Stages added to the file's state.

    Raises:
        ConfigError: The shape of an input is unknown, the net has no outputs, or trains a detector.
        PrototxtError: The file cannot be read.
    """
    read = read_source(source, ignore_unknown_fields=False)
    layers, trained = (
        list(filter_phase(read.message, phase, level, stages)[0].layer)
        for phase in ("TEST", "TRAIN")
    )
    detector = next((one for one in [*layers, *trained] if one.type in DETECTION), None)
    if detector is not None:
        message = (
            f"got layer {detector.name!r} ({detector.type}), which trains a detector, expected a "
            "classifier or a similar net; use the detector's own deploy prototxt"
        )
        raise ConfigError(
            message, code=ErrorCode.UNSUPPORTED, layer=detector.name, got=detector.type
        )
    tops = {top for one in layers for top in one.top}
    every = list({one.name: one for one in [*trained, *layers]}.values())
    losses = [one for one in every if _is_loss(one) and one.bottom and one.bottom[0] in tops]
    auxiliary = [one for one in losses if _is_auxiliary(one, losses)]
    notes = [
        f"left out: layer {one.name!r} ({one.type}), an auxiliary classifier" for one in auxiliary
    ]
    main = [one for one in losses if one not in auxiliary]
    learned: set[str] = set()  # blobs that depend on parameters
    for one in layers:
        if layer_metadata(one.type).params or learned.intersection(one.bottom):
            learned.update(one.top)
    heads: list[str] = []
    for one in main:  # the first bottom that the net predicts, as targets may come first
        predicted = [blob for blob in one.bottom if blob in learned] or [one.bottom[0]]
        heads += predicted if one.type in PAIRS else predicted[:1]
    used = {blob for one in [*layers, *losses] for blob in one.bottom if blob not in one.top}
    ends = [
        top
        for one in layers
        if not is_source(one) and not _is_training(one)
        for top in one.top
        if top not in used
    ]
    scored = {
        one.bottom[0]: one.top[0] for one in layers if one.type in SCORES and len(one.bottom) == 1
    }
    inner = {
        blob
        for one in layers
        if not _is_training(one)
        for blob in one.bottom
        if blob not in one.top and blob not in scored
    }
    heads = [blob for blob in heads if blob not in inner] or heads
    outputs = list(dict.fromkeys([*(scored.get(blob, blob) for blob in heads), *ends]))
    if not outputs:  # a net for tests has no losses, but metrics
        outputs = [one.bottom[0] for one in layers if _is_training(one) and one.bottom]
    if not outputs:
        message = "got a net without outputs in phase TEST besides data; name its deploy prototxt"
        raise ConfigError(message, code=ErrorCode.MISSING, file=str(source))
    reduced = reduce_net(
        read, lambda _: "", weights=list(map(str, weights)), outputs=outputs, only=True,
        shapes=shapes, level=level, stages=stages,
    )  # fmt: skip
    net = DeployNet(NetParameter(name=reduced.message.name), notes, outputs, layers)
    read_blobs = {blob for one in reduced.message.layer for blob in one.bottom} | set(outputs)
    net.message.layer.extend(
        _as_deployed(one, shapes or {})
        for one in reduced.message.layer
        if one.type != "Input" or read_blobs.intersection(one.top)  # not labels
    )
    _refuse_dangling(net.message, read.message.layer, source)
    for loss in main:
        if loss.bottom[0] in outputs:
            _add_scores(net, loss)
    return net


def _is_loss(layer: LayerParameter) -> bool:
    if layer.type == "Python":
        return any(layer.loss_weight)
    return layer_metadata(layer.type).better == "smaller"


def _is_training(layer: LayerParameter) -> bool:
    """Return True for losses and metrics."""
    return is_training_only(layer.type) or _is_loss(layer)


def _is_auxiliary(layer: LayerParameter, losses: Sequence[LayerParameter]) -> bool:
    """Return True if another loss has the same type and target, and a larger weight."""

    def weight(loss: LayerParameter) -> float:
        return loss.loss_weight[0] if loss.loss_weight else 1.0

    return any(
        other.type == layer.type
        and other.bottom[1:] == layer.bottom[1:]
        and other.bottom[0] != layer.bottom[0]
        and weight(other) > weight(layer)
        for other in losses
    )


def _refuse_dangling(net: NetParameter, layers: Iterable[LayerParameter], source: Path) -> None:
    """Refuse a net whose data layers belong to another state."""
    tops = {top for one in net.layer for top in one.top}
    missing = sorted({blob for one in net.layer for blob in one.bottom} - tops)
    if not missing:
        return
    stages = sorted({stage for one in layers for rule in one.include for stage in rule.stage})
    choose = f"choose a stage of the net by --stage: {', '.join(stages)}; or " if stages else ""
    message = (
        f"got no layer for {', '.join(map(repr, missing))} in phase TEST; {choose}give the shape "
        f"of an input, e.g. --shape {missing[0]}=1,3,224,224"
    )
    raise ConfigError(
        message, code=ErrorCode.MISSING, file=str(source), blob=missing[0], stages=stages
    )


def _as_deployed(layer: LayerParameter, shapes: Shapes) -> LayerParameter:
    """Return a layer without rules, fillers and learning rates; inputs have one item."""
    made = LayerParameter()
    made.CopyFrom(layer)
    for name in ("include", "exclude", "phase", "loss_weight", "propagate_down"):
        made.ClearField(name)
    for param in made.param:
        for name in ("lr_mult", "decay_mult"):
            param.ClearField(name)
    if not any(param.ByteSize() for param in made.param):
        made.ClearField("param")
    for descriptor, value in made.ListFields():
        if descriptor.message_type is not None and descriptor.name.endswith("_param"):
            for name in FILLERS:
                if name in descriptor.message_type.fields_by_name:
                    value.ClearField(name)
    if made.type == "Input":
        for top, shape in zip(made.top, made.input_param.shape, strict=False):
            if top not in shapes and len(shape.dim) > 1:
                shape.dim[0] = 1
    return made


def _add_scores(net: DeployNet, loss: LayerParameter) -> None:
    """Add the Softmax or Sigmoid that a loss computes."""
    blob = loss.bottom[0]
    kind = next((one for one in layer_metadata(loss.type).contains if one in SCORES), "")
    if not kind or any(blob in one.bottom and one.type == kind for one in net.message.layer):
        return
    names = {name for one in net.message.layer for name in (one.name, *one.top)}
    top = next(name for name in ("prob", f"{blob}_prob", f"{loss.name}_prob") if name not in names)
    made = net.message.layer.add(name=top, type=kind, bottom=[blob], top=[top])
    if kind == "Softmax":
        axis = getattr(loss, AXES.get(loss.type, "softmax_param")).axis
        if axis != 1:
            made.softmax_param.axis = axis
    net.notes.append(f"layer {loss.name!r} ({loss.type}) becomes {kind}, with top {top!r}")
    net.outputs = [top if name == blob else name for name in net.outputs]
