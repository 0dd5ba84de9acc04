"""The codes of findings: what each means, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = ["CODES", "Code", "Meaning"]

Code = Literal[
    "all-frozen",
    "batch-norm-lr",
    "batch-norm-scale",
    "batch-norm-stats",
    "clip-before-iter-size",
    "crop-size",
    "dropout-in-test",
    "duplicate-name",
    "foreign-field",
    "growing-rate",
    "in-place",
    "label-range",
    "left-out",
    "mean-before-scale",
    "mean-in-rgb",
    "mean-size",
    "mirror-in-test",
    "missing-file",
    "momentum",
    "moved-weight",
    "no-loss",
    "no-snapshot",
    "no-test",
    "old-field",
    "old-format",
    "old-input",
    "one-phase",
    "poly-max-iter",
    "relu-before-loss",
    "rules",
    "snapshot-folder",
    "solver-field",
    "solver-net",
    "stepvalue",
    "syntax",
    "twice",
    "unknown-blob",
    "unknown-field",
    "unknown-type",
    "unreadable",
    "unused-blob",
    "unused-field",
    "useless-bias",
    "zero-weights",
]


class Meaning(NamedTuple):
    """What a code says.

    Attributes:
        text: What is so, and why it matters.
        remedy: What to do.
    """

    text: str
    remedy: str


CODES: Mapping[Code, Meaning] = {
    # -- the text
    "unreadable": Meaning(
        "The file is not there, or is no text.", "Check the name; a prototxt is a text file."
    ),
    "syntax": Meaning(
        "The text breaks the rules of prototxt, or a field has a value of the wrong kind.",
        "Correct it at the line and column that are named.",
    ),
    "unknown-field": Meaning(
        "A message has no field of this name, so a net would not be made.",
        "Correct the name, or move the field to the message it belongs to; the nearest is named.",
    ),
    "foreign-field": Meaning(
        "A fork of Caffe has this field. As an error it has no meaning here; as a warning it is "
        "read as the nearest of Caffe's.",
        "Remove it, or check that what it is read as is what was meant.",
    ),
    "old-format": Meaning(
        "The net is in a format of 2013 or 2014. It is an error where old and new layers are "
        "mixed, or cannot be brought up to date.",
        "Run `demitasse upgrade net`, which writes today's format.",
    ),
    "old-input": Meaning(
        "Inputs are given as fields of the net.", "Use an Input layer, or `demitasse upgrade net`."
    ),
    "old-field": Meaning(
        "A field has gone out of use; it is still read, or does nothing any more.",
        "Use the field that took its place, or `demitasse upgrade net`.",
    ),
    "left-out": Meaning(
        "Something of the old format has no place in today's and is left out.",
        "Say it with today's fields if it matters.",
    ),
    # -- layers and blobs
    "rules": Meaning(
        "The rules that choose the layers of a phase contradict themselves.",
        "Give a layer `include` or `exclude`, not both.",
    ),
    "one-phase": Meaning(
        "The net can be made in one of the two phases only, or needs a stage.",
        "Nothing, if it is meant for that phase.",
    ),
    "unknown-blob": Meaning(
        "A layer reads a blob that no layer before it writes, in this phase.",
        "Correct the name, or the order and the rules of the layers.",
    ),
    "unknown-type": Meaning(
        "No layer class is of this type.",
        "Correct the name, or register the class under it before the net is made.",
    ),
    "duplicate-name": Meaning(
        "Two layers have one name. Files of weights find layers by name, so both get the same.",
        "Give each layer a name of its own; to share weights, name the `param`.",
    ),
    "unused-blob": Meaning(
        "No layer reads this blob, in a net that has a loss. It is computed, and printed as an "
        "output.",
        "Remove the layer, or end the blob in a Silence layer.",
    ),
    "in-place": Meaning(
        "A layer writes over the output of another, which reads it again for its gradient: the "
        "gradient is wrong.",
        "Give the layer another top.",
    ),
    "zero-weights": Meaning(
        "Weights without a filler begin at 0, so that all units compute and learn the same, or "
        "nothing.",
        "Add a filler, unless the weights are loaded from a file.",
    ),
    "all-frozen": Meaning(
        "Every parameter of a net that is trained has a learning rate of 0.",
        "Leave out `lr_mult: 0` where something is to be learned.",
    ),
    "useless-bias": Meaning(
        "BatchNorm subtracts the mean, and with it the bias that the layer before has added.",
        "Set `bias_term: false`.",
    ),
    "batch-norm-lr": Meaning(
        "The blobs of BatchNorm are averages, which are computed and not learned. A learning rate "
        "other than 0 is refused; in files of old it is read as 0.",
        "Leave the `param` entries out.",
    ),
    "batch-norm-stats": Meaning(
        "`use_global_stats` is not what the phase would decide: in TEST, results then depend on "
        "the rest of the batch; in TRAIN, the averages stay what they are.",
        "Leave it out, unless the averages are to stay.",
    ),
    "batch-norm-scale": Meaning(
        "BatchNorm normalises only; the factor and the shift are learned by a Scale layer behind "
        "it.",
        "Add a Scale with `bias_term: true`, if they are wanted.",
    ),
    "twice": Meaning(
        "A loss begins with a layer that is there already, so that it is applied twice.",
        "Give the loss the scores; keep the layer for the net that is deployed.",
    ),
    "relu-before-loss": Meaning(
        "A ReLU takes the negative scores away from a loss that expects them.",
        "Remove the activation of the last layer.",
    ),
    "moved-weight": Meaning(
        "A top has a `loss_weight` and is read by another layer. The weight moves to a copy of "
        "the top, and the other loss weights of the layer are lost.",
        "Put the weight on a layer whose top nobody reads.",
    ),
    "dropout-in-test": Meaning(
        "A Dropout layer is in phase TEST only, where it does nothing.",
        "Let it be in TRAIN; it needs no rule.",
    ),
    "no-loss": Meaning(
        "The net reads data in phase TRAIN, but has nothing to minimise.",
        "Add a loss, or a `loss_weight`.",
    ),
    # -- data
    "missing-file": Meaning(
        "A file that is named is not there. For a solver's net it is an error; data may come "
        "later, so that theirs is a warning.",
        "Correct the name. It is looked for beside the file that names it and in the working "
        "folder.",
    ),
    "mirror-in-test": Meaning(
        "Images are mirrored at random in phase TEST, too, so that results change from run to run.",
        "Give a data layer to each phase, and `mirror` to that of TRAIN.",
    ),
    "mean-before-scale": Meaning(
        "`mean_value` looks like one of scaled pixels, but it is subtracted before `scale` is "
        "applied.",
        "Write the mean of pixels of 0 to 255.",
    ),
    "mean-in-rgb": Meaning(
        "`mean_value` looks like ImageNet's mean in the order red, green, blue. Images here are in "
        "the order blue, green, red.",
        "Turn the three values round.",
    ),
    "crop-size": Meaning(
        "`crop_size` is larger than the images or than the mean.",
        "Make it smaller, or the images larger.",
    ),
    "mean-size": Meaning(
        "The mean has another height and width than the images. They are equal, and the crop comes "
        "afterwards.",
        "Compute the mean of these images with `demitasse compute_image_mean`.",
    ),
    "label-range": Meaning(
        "Labels are beyond the number of scores, so that the loss is no number.",
        "Raise `num_output` of the last layer, correct the labels, or name the `ignore_label`.",
    ),
    # -- solvers
    "solver-field": Meaning(
        "A field of the solver is missing, or has a value it cannot have.",
        "Give it one of those that are named.",
    ),
    "poly-max-iter": Meaning(
        "The learning rate falls to its end at `max_iter`, which is missing.",
        "Give `max_iter`, the number of iterations to train for.",
    ),
    "solver-net": Meaning(
        "The solver names no net to train, or more than one.", "Name exactly one."
    ),
    "unused-field": Meaning(
        "The policy of the learning rate does not read this field.",
        "Remove it, or choose the policy that it belongs to.",
    ),
    "growing-rate": Meaning(
        "With `gamma` above 1 the learning rate grows.", "Choose a `gamma` of at most 1."
    ),
    "stepvalue": Meaning(
        "A step of the learning rate is never reached, or comes at once because the steps do not "
        "rise.",
        "Put the steps in order and below `max_iter`.",
    ),
    "momentum": Meaning(
        "With a momentum of 1 or more, what a step has begun never ends.", "Choose one below 1."
    ),
    "clip-before-iter-size": Meaning(
        "`clip_gradients` looks at the sum over `iter_size` batches, before it is divided, as in "
        "Caffe.",
        "Choose the limit for the sum.",
    ),
    "snapshot-folder": Meaning(
        "The folder of `snapshot_prefix` is not there, so that training would end at its first "
        "snapshot.",
        "Make the folder, or correct the prefix.",
    ),
    "no-snapshot": Meaning(
        "No snapshot is written, not even at the end: what was learned is lost.",
        "Give `snapshot`, or leave out `snapshot_after_train: false`.",
    ),
    "no-test": Meaning(
        "`test_interval` is given, but nothing is tested, or not before the training ends.",
        "Give `test_iter`, or a smaller `test_interval`.",
    ),
}
"""Every code, in the order of its page."""
