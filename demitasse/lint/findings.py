"""Findings, and their codes: the meaning of each, and its remedy."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from demitasse.core.text import escaped


class Meaning(NamedTuple):
    """The mistake with its effect, and the correction."""

    text: str
    remedy: str


CODES: Mapping[str, Meaning] = {
    # -- the text
    "unreadable": Meaning(
        "The file does not exist, or is not text.",
        "Check the name; a prototxt is a text file."),
    "syntax": Meaning(
        "The text breaks the rules of prototxt, or a field has a value of the wrong kind.",
        "Correct the named line and column."),
    "unknown-field": Meaning(
        "A message has no field of this name; the net cannot be made.",
        "Correct the name, or move the field to its message; the nearest name is given."),
    "foreign-field": Meaning(
        "A fork of Caffe has this field. With an error the field has no meaning here; with a "
        "warning it is read as the nearest field of Caffe.",
        "Remove the field, or check its substitute."),
    "old-format": Meaning(
        "The net has a format of 2013 or 2014. A mix of old and new layers is an error, and so is "
        "a net that cannot be upgraded.",
        "Run `demitasse upgrade net`."),
    "old-input": Meaning(
        "Inputs are given as fields of the net.",
        "Use an Input layer, or `demitasse upgrade net`."),
    "old-field": Meaning(
        "A field is deprecated; it is still read, or has no effect.",
        "Use the field in its place, or `demitasse upgrade net`."),
    "left-out": Meaning(
        "A part of the old format has no counterpart today and is dropped.",
        "Use today's fields if it matters."),
    # -- layers and blobs
    "rules": Meaning(
        "The rules that choose the layers of a phase contradict themselves.",
        "Give a layer `include` or `exclude`, not both."),
    "one-phase": Meaning(
        "The net can be made in one phase only, or needs a stage.",
        "Nothing, if the net is for that phase."),
    "unknown-blob": Meaning(
        "A layer reads a blob that no layer above writes in this phase.",
        "Correct the name, or the order and the rules of the layers."),
    "unknown-type": Meaning(
        "No layer has this type.",
        "Correct the name, or register the layer before the net is made."),
    "duplicate-name": Meaning(
        "Two layers have the same name. Weights are loaded by layer name, so both get the same.",
        "Give each layer its own name; to share weights, name the `param`."),
    "unused-blob": Meaning(
        "No layer reads this blob, in a net with a loss. It is computed and printed as an output.",
        "Remove the layer, or read the blob by a Silence layer."),
    "in-place": Meaning(
        "A layer overwrites a blob that another layer's backward needs: the gradient is wrong.",
        "Give the layer another top."),
    "zero-weights": Meaning(
        "Weights without a filler start at 0, so all units learn the same, or nothing.",
        "Add a filler, unless the weights are loaded from a file."),
    "all-frozen": Meaning(
        "Every parameter of a trained net has a learning rate of 0.",
        "Remove `lr_mult: 0` from layers that should learn."),
    "useless-bias": Meaning(
        "BatchNorm subtracts the mean, and with the mean the bias of the layer above.",
        "Set `bias_term: false`."),
    "batch-norm-lr": Meaning(
        "The blobs of BatchNorm are averages, which are not learned. A learning rate other than 0 "
        "is an error; in old files it is read as 0.",
        "Remove the `param` entries."),
    "batch-norm-stats": Meaning(
        "`use_global_stats` contradicts the phase: in TEST, results depend on the rest of the "
        "batch; in TRAIN, the averages are not updated.",
        "Remove it, unless the averages should stay fixed."),
    "batch-norm-scale": Meaning(
        "BatchNorm only normalises; a Scale layer after it learns factor and shift.",
        "Add a Scale with `bias_term: true` if the net should learn them."),
    "twice": Meaning(
        "A loss contains a layer that is also before the loss, so it is applied twice.",
        "Connect the loss to the scores; keep the layer in the deployed net."),
    "relu-before-loss": Meaning(
        "A ReLU removes the negative scores that a loss expects.",
        "Remove the activation of the last layer."),
    "moved-weight": Meaning(
        "A top has a `loss_weight`, and another layer reads the top. The weight moves to a copy "
        "of the top, and the other loss weights of the layer are lost.",
        "Put the weight on a top without readers."),
    "set-up": Meaning(
        "A layer refuses its fields, or the shapes of its bottoms; the net cannot be made.",
        "Correct the named field, or the layer that makes the bottom."),
    "not-finite": Meaning(
        "A loss weight, a multiplier, or a number of a filler or a transform is NaN or infinite. "
        "Numbers above 3.4e38 are infinite.",
        "Write a finite number."),
    "dropout-in-test": Meaning(
        "A Dropout layer is in phase TEST only, where it has no effect.",
        "Include it in TRAIN; it needs no rule."),
    "no-loss": Meaning(
        "The net reads data in phase TRAIN, but has no loss.",
        "Add a loss, or a `loss_weight`."),
    # -- data
    "missing-file": Meaning(
        "A named file does not exist. A missing net of a solver is an error; missing data is a "
        "warning, as data can come later.",
        "Correct the name. It is relative to the prototxt's folder or the working directory."),
    "wrong-source": Meaning(
        "A named file exists, but its layer reads files of another kind. `hdf5_data_param` and "
        "`image_data_param` name a text file that lists files.",
        "Write the names of the files into a text file, and name the text file."),
    "mirror-in-test": Meaning(
        "Images are mirrored at random in phase TEST, too, so results change from run to run.",
        "Use a data layer for each phase, with `mirror` in TRAIN only."),
    "mean-before-scale": Meaning(
        "`mean_value` looks like the mean of scaled pixels, but is subtracted before `scale`.",
        "Give the mean of pixels from 0 to 255."),
    "mean-in-rgb": Meaning(
        "`mean_value` looks like ImageNet's mean in the order red, green, blue. Images here are "
        "in the order blue, green, red.",
        "Reverse the three values."),
    "crop-size": Meaning(
        "`crop_size` is larger than the images or than the mean.",
        "Use a smaller crop, or larger images."),
    "mean-size": Meaning(
        "The height and width of the mean differ from the images'. They must be equal; the crop "
        "comes afterwards.",
        "Compute the mean of these images with `demitasse compute_image_mean`."),
    "label-range": Meaning(
        "Labels are beyond the number of scores, so the loss is NaN.",
        "Raise `num_output` of the last layer, correct the labels, or set `ignore_label`."),
    # -- solvers
    "solver-field": Meaning(
        "A field of the solver is missing or has an invalid value.",
        "Use one of the named values."),
    "poly-max-iter": Meaning(
        "The learning rate falls to 0 at `max_iter`, which is missing.",
        "Set `max_iter`, the number of iterations."),
    "solver-net": Meaning(
        "The solver has no net to train, or more than one.",
        "Give exactly one."),
    "unused-field": Meaning(
        "The policy of the learning rate does not read this field.",
        "Remove the field, or choose its policy."),
    "growing-rate": Meaning(
        "With `gamma` above 1 the learning rate grows.",
        "Use a `gamma` of at most 1."),
    "stepvalue": Meaning(
        "A step of the learning rate is never reached, or the steps are not in ascending order.",
        "Put the steps in order and below `max_iter`."),
    "momentum": Meaning(
        "With a momentum of 1 or more, updates never decay.",
        "Use a momentum below 1."),
    "clip-before-iter-size": Meaning(
        "`clip_gradients` limits the norm of the sum over `iter_size` batches, before division, "
        "as in Caffe.",
        "Choose the limit for the sum."),
    "snapshot-folder": Meaning(
        "The folder of `snapshot_prefix` does not exist; training would fail at its first "
        "snapshot.",
        "Make the folder, or correct the prefix."),
    "no-snapshot": Meaning(
        "No snapshot is written, not even at the end: the learned weights are lost.",
        "Set `snapshot`, or remove `snapshot_after_train: false`."),
    "no-test": Meaning(
        "`test_interval` is set, but no test runs before the end of training.",
        "Set `test_iter`, or a smaller `test_interval`."),
}  # fmt: skip
"""Every code, in the order of its page."""


Severity = Literal["error", "warning", "note"]
"""error: cannot run. warning: runs, but probably not as intended. note: worth knowing."""

LINE = re.compile(r"(.+?):(\d+)(?::(\d+))?(?=:|$)")
"""File, line and column at the start of the place of a finding."""


@dataclass(frozen=True)
class Finding:
    """A mistake in a net or solver.

    Attributes:
        severity: Severity.
        code: Name of the rule, stable from version to version.
        message: The mistake, and its correction.
        where: File, line and layer, as far as known.
    """

    severity: Severity
    code: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{escaped(self.where, one_line=True)}: " if self.where else ""
        return f"{place}{self.severity}: {escaped(self.message)} [{self.code}]"


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by file, line and column; those without a line come first in their file.

    Equal messages of several places are merged, with the number of further places.
    """
    places: dict[tuple[Severity, str, str], dict[str, None]] = {}
    for finding in findings:
        key = (finding.severity, finding.code, finding.message)
        places.setdefault(key, {})[finding.where] = None
    unique = []
    for (severity, code, message), (first, *others) in places.items():
        again = f" (and {len(others)} more)" if others else ""
        unique.append(Finding(severity, code, message + again, first))
    files: dict[str, int] = {}

    def place(finding: Finding) -> tuple[int, int, int]:
        match = LINE.match(finding.where)
        name = match[1] if match else finding.where.partition(": ")[0]
        line, column = (match[2], match[3]) if match else (0, 0)
        return files.setdefault(name, len(files)), int(line), int(column or 0)

    return sorted(unique, key=place)
