"""Examples of every code of lint: a text with the finding and one without.

The documentation shows the examples, and tests check them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from demitasse.lint.findings import Severity


@dataclass(frozen=True)
class Example:
    """A text with a mistake, and the corrected text."""

    severity: Severity  # of the finding
    wrong: str
    right: str
    around: str = "{}"  # file around both texts; "{}" is their place

    def file(self, text: str) -> str:
        """Return the whole file for ``wrong`` or ``right``."""
        return self.around.replace("{}", text)


DATA = """\
layer {
  name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "records" batch_size: 2 backend: LMDB }
}"""
FC = """\
layer {
  name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } }
}"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }'
SOLVER = """\
net: "net.prototxt"
base_lr: 0.1
lr_policy: "fixed"
max_iter: 100
snapshot: 50
"""
INPUT = 'layer { name: "x" type: "Input" top: "x" }'
BEFORE_LOSS = f"{DATA}\n{FC}\n{{}}\n{LOSS}"  # layers between the scores and the loss
AFTER_DATA = f"{DATA}\n{{}}\n{LOSS}"  # layers between the data and the loss
AT_END = f"{DATA}\n{FC}\n{{}}\n"
BESIDE = f"{DATA}\n{FC}\n{LOSS}\n{{}}\n"
TRANSFORM = f"{DATA.replace('data_param', '{} data_param')}\n{FC}\n{LOSS}"
IN_SOLVER = f"{SOLVER}{{}}\n"
NET, POLICY = 'net: "net.prototxt"', 'lr_policy: "fixed"'
FOR_NET, FOR_POLICY = SOLVER.replace(NET, "{}"), SOLVER.replace(POLICY, "{}")


def _layer(name: str, kind: str, bottoms: str = "fc", top: str = "", more: str = "") -> str:
    """Return a layer; its top has its name by default, and more fields have their own line."""
    read = " ".join(f'bottom: "{blob}"' for blob in bottoms.split())
    fields = f'name: "{name}" type: "{kind}" {read} top: "{top or name}"'
    return f"layer {{\n  {fields}\n  {more}\n}}" if more else f"layer {{ {fields} }}"


def _fc(more: str) -> str:
    """Return the layer FC with more fields."""
    return FC.replace("  inner", f"  {more}\n  inner")


def _batch_norm(fields: str = "") -> str:
    """Return a BatchNorm and a layer that scales its output."""
    norm = _layer("bn", "BatchNorm", top="fc").replace(" }", f"{fields} }}")
    return f"{norm}\n{_layer('scale', 'Scale', top='fc')}"


def _transform(fields: str) -> str:
    return f"transform_param {{ {fields} }}"


def _conv(field: str) -> str:
    """Return a convolution with a field."""
    more = f"convolution_param {{ kernel_size: 3 {field} }}"
    return _layer("fc", "Convolution", "data", more=more)


def _concat(field: str) -> str:
    """Return a Concat with a field."""
    return _layer("both", "Concat", "fc fc", more=f"concat_param {{ {field} }}")


def _accuracy(count: int) -> str:
    """Return an Accuracy of the best classes."""
    more = f"accuracy_param {{ top_k: {count} }}"
    return _layer(f"top{count}", "Accuracy", "fc label", more=more)


def _after_swish(top: str) -> str:
    """Return a Dropout of a Swish with a top, and the layer FC that reads the top."""
    layers = _layer("swish", "Swish", "data"), _layer("drop", "Dropout", "swish", top)
    return "\n".join([*layers, FC.replace('"data"', f'"{top}"')])


QUIET = 'layer { name: "quiet" type: "Silence" bottom: "data" }'
SIZE = _layer("size", "AbsVal")
RATES = "\n  param { lr_mult: 0 } param { lr_mult: 0 } param { lr_mult: 0 }"
STATS = "\n  batch_norm_param { use_global_stats: false }"
OLD_LAYER = 'layers { name: "x" type: SPLIT top: "x" }'
NEW_LAYER = 'layer { name: "y" type: "Input" top: "y" }'
OLD_INPUT = 'input: "x" input_shape { dim: 1 dim: 3 }'
NEW_INPUT = """\
layer {
  name: "x" type: "Input" top: "x"
  input_param { shape { dim: 1 dim: 3 } }
}"""
MEAN = _transform('mean_file: "mean.binaryproto"')
IN_TRAIN, IN_TEST = "include { phase: TRAIN }", "include { phase: TEST }"
MULTISTEP, STEP = 'lr_policy: "multistep"\ngamma: 0.1', 'lr_policy: "step"\ngamma: 0.1'

EXAMPLES: Mapping[str, Sequence[Example]] = {
    "unreadable": [Example("error", "", INPUT)],
    "syntax": [Example("error", "layer { name: 3 }", INPUT.replace("x", "3", 1))],
    "unknown-field": [Example("error", 'layer { nam: "x" }', INPUT)],
    "foreign-field": [
        Example("error", _conv("relu: true"), _conv("num_output: 3"), AFTER_DATA),
        Example("warning", _conv("hole: 2"), _conv("dilation: 2"), AFTER_DATA)],
    "old-format": [
        Example("warning", OLD_LAYER, INPUT),
        Example("error", f"{OLD_LAYER}\n{NEW_LAYER}", NEW_LAYER)],
    "old-input": [Example("note", OLD_INPUT, NEW_INPUT)],
    "old-field": [
        Example("note", "solver_type: ADAM", 'type: "Adam"', IN_SOLVER),
        Example("note", _concat("concat_dim: 1"), _concat("axis: 1"), AT_END)],
    "left-out": [Example("warning", 'input: "x"', OLD_INPUT)],
    "rules": [Example(
        "error", _layer("drop", "Dropout", top="fc", more=f"{IN_TRAIN} exclude {{ phase: TEST }}"),
        _layer("drop", "Dropout", top="fc", more=IN_TRAIN), BEFORE_LOSS)],
    "one-phase": [Example("note", IN_TRAIN, "", TRANSFORM)],
    "unknown-blob": [Example("error", FC.replace('"data"', '"dat"'), FC, AFTER_DATA)],
    "unknown-type": [Example("error", _layer("relu", "Relu"), _layer("relu", "ReLU"), AT_END)],
    "duplicate-name": [Example("warning", QUIET.replace("quiet", "fc"), QUIET, BESIDE)],
    "unused-blob": [Example("warning", SIZE, f"{SIZE}\n{QUIET.replace('data', 'size')}", BESIDE)],
    "in-place": [Example("error", _after_swish("swish"), _after_swish("drop"), AFTER_DATA)],
    "zero-weights": [Example(
        "warning", FC.replace(' weight_filler { type: "xavier" }', ""), FC, AFTER_DATA)],
    "all-frozen": [Example(
        "warning", _fc("param { lr_mult: 0 } param { lr_mult: 0 }"),
        _fc("param { lr_mult: 1 } param { lr_mult: 0 }"), AFTER_DATA)],
    "useless-bias": [Example(
        "note", f"{FC}\n{_batch_norm()}",
        FC.replace("num_output: 3", "num_output: 3 bias_term: false") + f"\n{_batch_norm()}",
        AFTER_DATA)],
    "batch-norm-lr": [
        Example("error", _batch_norm("\n  param { lr_mult: 1 }"), _batch_norm(RATES), BEFORE_LOSS),
        Example("note", _batch_norm(RATES.replace("0", "1")), _batch_norm(), BEFORE_LOSS)],
    "batch-norm-stats": [
        Example("warning", _batch_norm(STATS), _batch_norm(), BEFORE_LOSS),
        Example("note", _batch_norm(STATS.replace("false", "true")), _batch_norm(), BEFORE_LOSS)],
    "batch-norm-scale": [Example(
        "note", _batch_norm().partition("\n")[0], _batch_norm(), BEFORE_LOSS)],
    "twice": [Example(
        "warning", f"{_layer('prob', 'Softmax')}\n" + LOSS.replace('"fc"', '"prob"'), LOSS,
        AT_END)],
    "relu-before-loss": [Example(
        "warning", f"{_layer('relu', 'ReLU', top='fc')}\n{LOSS}", LOSS, AT_END)],
    "moved-weight": [Example("warning", _fc("loss_weight: 0.1"), FC, AFTER_DATA)],
    "set-up": [Example("error", _accuracy(5), _accuracy(2), BEFORE_LOSS)],
    "not-finite": [Example("error", _fc("param { lr_mult: inf }"), FC, AFTER_DATA)],
    "dropout-in-test": [Example(
        "warning", _layer("drop", "Dropout", top="fc", more=IN_TEST),
        _layer("drop", "Dropout", top="fc"), BEFORE_LOSS)],
    "no-loss": [Example("warning", "", LOSS, AT_END)],
    "missing-file": [
        Example("warning", _transform('mean_file: "none.binaryproto"'), MEAN, TRANSFORM),
        Example("error", NET.replace("net.", "none."), NET, FOR_NET)],
    "wrong-source": [Example(
        "error", DATA.replace('"records"', '"mean.binaryproto"'), DATA, f"{{}}\n{FC}\n{LOSS}")],
    "mirror-in-test": [Example(
        "warning", _transform("mirror: true"), f"{IN_TRAIN} {_transform('mirror: true')}",
        TRANSFORM)],
    "mean-before-scale": [Example(
        "warning", _transform("scale: 0.00390625 mean_value: 0.5"),
        _transform("scale: 0.00390625 mean_value: 128"), TRANSFORM)],
    "mean-in-rgb": [Example(
        "warning", _transform("mean_value: [123.68, 116.779, 103.939]"),
        _transform("mean_value: [103.939, 116.779, 123.68]"), TRANSFORM)],
    "crop-size": [Example(
        "error", _transform("crop_size: 9"), _transform("crop_size: 7"), TRANSFORM)],
    "mean-size": [Example("error", _transform('mean_file: "small.binaryproto"'), MEAN, TRANSFORM)],
    "label-range": [Example("error", FC.replace("num_output: 3", "num_output: 2"), FC, AFTER_DATA)],
    "solver-field": [
        Example("error", "iter_size: 0", "iter_size: 1", IN_SOLVER),
        Example("warning", "", "max_iter: 100", SOLVER.replace("max_iter: 100", "{}")),
        Example("warning", 'lr_policy: "exp"', 'lr_policy: "exp"\ngamma: 0.9', FOR_POLICY)],
    "poly-max-iter": [Example(
        "error", 'lr_policy: "poly"', 'lr_policy: "poly"\nmax_iter: 100',
        f"{NET}\nbase_lr: 0.1\n{{}}\npower: 1\nsnapshot: 50\n")],
    "solver-net": [Example("error", f"{NET}\ntrain_{NET}", NET, FOR_NET)],
    "unused-field": [Example("note", f"{POLICY}\ngamma: 0.1", POLICY, FOR_POLICY)],
    "growing-rate": [Example(
        "warning", 'lr_policy: "exp"\ngamma: 1.1', 'lr_policy: "exp"\ngamma: 0.9', FOR_POLICY)],
    "stepvalue": [
        Example(
            "warning", f"{MULTISTEP}\nstepvalue: [50, 20]", f"{MULTISTEP}\nstepvalue: [20, 50]",
            FOR_POLICY),
        Example("note", f"{STEP}\nstepsize: 100", f"{STEP}\nstepsize: 20", FOR_POLICY)],
    "momentum": [Example("warning", "momentum: 1", "momentum: 0.9", IN_SOLVER)],
    "clip-before-iter-size": [Example(
        "note", "clip_gradients: 5\niter_size: 2", "clip_gradients: 5", IN_SOLVER)],
    "snapshot-folder": [Example(
        "error", 'snapshot_prefix: "none/net"', 'snapshot_prefix: "net"', IN_SOLVER)],
    "no-snapshot": [Example(
        "warning", "snapshot_after_train: false", "snapshot: 50",
        SOLVER.replace("snapshot: 50", "{}"))],
    "no-test": [
        Example("warning", "test_interval: 10", "test_interval: 10\ntest_iter: 2", IN_SOLVER),
        Example(
            "note", "test_interval: 200\ntest_iter: 2", "test_interval: 10\ntest_iter: 2",
            IN_SOLVER)],
}  # fmt: skip
"""Code -> examples, one for each severity. Files in the examples: ``records``, a database of 8 x 8
images with labels 0 to 2, and their mean, ``mean.binaryproto``."""
