"""Examples of every code of lint: a text with the finding and one without.

The documentation shows the examples, and tests check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from demitasse.lint.findings import Severity


@dataclass(frozen=True)
class Example:
    """A text with a mistake, and the corrected text.

    Attributes:
        severity: Severity of the finding.
        wrong: Text with the finding.
        right: Text without the finding.
        around: File around both texts; "{}" is their place.
    """

    severity: Severity
    wrong: str
    right: str
    around: str = "{}"

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
BEFORE_LOSS = f"{DATA}\n{FC}\n{{}}\n{LOSS}"  # layers between the scores and the loss
AFTER_DATA = f"{DATA}\n{{}}\n{LOSS}"  # layers between the data and the loss
AT_END = f"{DATA}\n{FC}\n{{}}\n"
BESIDE = f"{DATA}\n{FC}\n{LOSS}\n{{}}\n"
IN_SOLVER = f"{SOLVER}{{}}\n"
TRANSFORM = f"{DATA.replace('data_param', '{} data_param')}\n{FC}\n{LOSS}"


def _batch_norm(fields: str) -> str:
    """Return a BatchNorm and a layer that scales its output."""
    return (
        f'layer {{ name: "bn" type: "BatchNorm" bottom: "fc" top: "fc"{fields} }}\n'
        'layer { name: "scale" type: "Scale" bottom: "fc" top: "fc" }'
    )


def _conv(field: str) -> str:
    """Return a convolution with a field."""
    return (
        'layer {\n  name: "fc" type: "Convolution" bottom: "data" top: "fc"\n'
        f"  convolution_param {{ kernel_size: 3 {field} }}\n}}"
    )


RATES = "\n  param { lr_mult: 0 } param { lr_mult: 0 } param { lr_mult: 0 }"

EXAMPLES: Mapping[str, Sequence[Example]] = {
    "unreadable": [Example("error", "", 'layer { name: "x" type: "Input" top: "x" }')],
    "syntax": [Example("error", "layer { name: 3 }", 'layer { name: "3" type: "Input" top: "x" }')],
    "unknown-field": [
        Example("error", 'layer { nam: "x" }', 'layer { name: "x" type: "Input" top: "x" }')
    ],
    "foreign-field": [
        Example("error", _conv("relu: true"), _conv("num_output: 3"), AFTER_DATA),
        Example("warning", _conv("hole: 2"), _conv("dilation: 2"), AFTER_DATA),
    ],
    "old-format": [
        Example(
            "warning",
            'layers { name: "x" type: SPLIT top: "x" }',
            'layer { name: "x" type: "Input" top: "x" }',
        ),
        Example(
            "error",
            'layers { name: "x" type: SPLIT top: "x" }\nlayer { name: "y" type: "Input" top: "y" }',
            'layer { name: "y" type: "Input" top: "y" }',
        ),
    ],
    "old-input": [
        Example(
            "note",
            'input: "x" input_shape { dim: 1 dim: 3 }',
            'layer {\n  name: "x" type: "Input" top: "x"\n'
            "  input_param { shape { dim: 1 dim: 3 } }\n}",
        )
    ],
    "old-field": [
        Example("note", "solver_type: ADAM", 'type: "Adam"', IN_SOLVER),
        Example(
            "note",
            'layer {\n  name: "both" type: "Concat" bottom: "fc" bottom: "fc" top: "both"\n'
            "  concat_param { concat_dim: 1 }\n}",
            'layer {\n  name: "both" type: "Concat" bottom: "fc" bottom: "fc" top: "both"\n'
            "  concat_param { axis: 1 }\n}",
            AT_END,
        ),
    ],
    "left-out": [Example("warning", 'input: "x"', 'input: "x" input_shape { dim: 1 dim: 3 }')],
    "rules": [
        Example(
            "error",
            'layer {\n  name: "drop" type: "Dropout" bottom: "fc" top: "fc"\n'
            "  include { phase: TRAIN } exclude { phase: TEST }\n}",
            'layer {\n  name: "drop" type: "Dropout" bottom: "fc" top: "fc"\n'
            "  include { phase: TRAIN }\n}",
            BEFORE_LOSS,
        )
    ],
    "one-phase": [Example("note", "include { phase: TRAIN }", "", TRANSFORM)],
    "unknown-blob": [Example("error", FC.replace('"data"', '"dat"'), FC, AFTER_DATA)],
    "unknown-type": [
        Example(
            "error",
            'layer { name: "relu" type: "Relu" bottom: "fc" top: "relu" }',
            'layer { name: "relu" type: "ReLU" bottom: "fc" top: "relu" }',
            AT_END,
        )
    ],
    "duplicate-name": [
        Example(
            "warning",
            'layer { name: "fc" type: "Silence" bottom: "data" }',
            'layer { name: "quiet" type: "Silence" bottom: "data" }',
            BESIDE,
        )
    ],
    "unused-blob": [
        Example(
            "warning",
            'layer { name: "size" type: "AbsVal" bottom: "fc" top: "size" }',
            'layer { name: "size" type: "AbsVal" bottom: "fc" top: "size" }\n'
            'layer { name: "quiet" type: "Silence" bottom: "size" }',
            BESIDE,
        )
    ],
    "in-place": [
        Example(
            "error",
            'layer { name: "swish" type: "Swish" bottom: "data" top: "swish" }\n'
            'layer { name: "drop" type: "Dropout" bottom: "swish" top: "swish" }\n'
            + FC.replace('"data"', '"swish"'),
            'layer { name: "swish" type: "Swish" bottom: "data" top: "swish" }\n'
            'layer { name: "drop" type: "Dropout" bottom: "swish" top: "drop" }\n'
            + FC.replace('"data"', '"drop"'),
            AFTER_DATA,
        )
    ],
    "zero-weights": [
        Example("warning", FC.replace(' weight_filler { type: "xavier" }', ""), FC, AFTER_DATA)
    ],
    "all-frozen": [
        Example(
            "warning",
            FC.replace("  inner", "  param { lr_mult: 0 } param { lr_mult: 0 }\n  inner"),
            FC.replace("  inner", "  param { lr_mult: 1 } param { lr_mult: 0 }\n  inner"),
            AFTER_DATA,
        )
    ],
    "useless-bias": [
        Example(
            "note",
            f"{FC}\n{_batch_norm('')}",
            FC.replace("num_output: 3", "num_output: 3 bias_term: false") + "\n" + _batch_norm(""),
            AFTER_DATA,
        )
    ],
    "batch-norm-lr": [
        Example("error", _batch_norm("\n  param { lr_mult: 1 }"), _batch_norm(RATES), BEFORE_LOSS),
        Example("note", _batch_norm(RATES.replace("0", "1")), _batch_norm(""), BEFORE_LOSS),
    ],
    "batch-norm-stats": [
        Example(
            "warning",
            _batch_norm("\n  batch_norm_param { use_global_stats: false }"),
            _batch_norm(""),
            BEFORE_LOSS,
        ),
        Example(
            "note",
            _batch_norm("\n  batch_norm_param { use_global_stats: true }"),
            _batch_norm(""),
            BEFORE_LOSS,
        ),
    ],
    "batch-norm-scale": [
        Example("note", _batch_norm("").partition("\n")[0], _batch_norm(""), BEFORE_LOSS)
    ],
    "twice": [
        Example(
            "warning",
            'layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }\n'
            + LOSS.replace('"fc"', '"prob"'),
            LOSS,
            AT_END,
        )
    ],
    "relu-before-loss": [
        Example(
            "warning",
            'layer { name: "relu" type: "ReLU" bottom: "fc" top: "fc" }\n' + LOSS,
            LOSS,
            AT_END,
        )
    ],
    "moved-weight": [
        Example("warning", FC.replace("  inner", "  loss_weight: 0.1\n  inner"), FC, AFTER_DATA)
    ],
    "set-up": [
        Example(
            "error",
            'layer {\n  name: "top5" type: "Accuracy" bottom: "fc" bottom: "label" top: "top5"\n'
            "  accuracy_param { top_k: 5 }\n}",
            'layer {\n  name: "top2" type: "Accuracy" bottom: "fc" bottom: "label" top: "top2"\n'
            "  accuracy_param { top_k: 2 }\n}",
            BEFORE_LOSS,
        )
    ],
    "not-finite": [
        Example("error", FC.replace("  inner", "  param { lr_mult: inf }\n  inner"), FC, AFTER_DATA)
    ],
    "dropout-in-test": [
        Example(
            "warning",
            'layer {\n  name: "drop" type: "Dropout" bottom: "fc" top: "fc"\n'
            "  include { phase: TEST }\n}",
            'layer { name: "drop" type: "Dropout" bottom: "fc" top: "fc" }',
            BEFORE_LOSS,
        )
    ],
    "no-loss": [Example("warning", "", LOSS, AT_END)],
    "missing-file": [
        Example(
            "warning",
            'transform_param { mean_file: "none.binaryproto" }',
            'transform_param { mean_file: "mean.binaryproto" }',
            TRANSFORM,
        ),
        Example(
            "error",
            'net: "none.prototxt"',
            'net: "net.prototxt"',
            SOLVER.replace('net: "net.prototxt"', "{}"),
        ),
    ],
    "wrong-source": [
        Example(
            "error", DATA.replace('"records"', '"mean.binaryproto"'), DATA, f"{{}}\n{FC}\n{LOSS}"
        )
    ],
    "mirror-in-test": [
        Example(
            "warning",
            "transform_param { mirror: true }",
            "include { phase: TRAIN } transform_param { mirror: true }",
            TRANSFORM,
        )
    ],
    "mean-before-scale": [
        Example(
            "warning",
            "transform_param { scale: 0.00390625 mean_value: 0.5 }",
            "transform_param { scale: 0.00390625 mean_value: 128 }",
            TRANSFORM,
        )
    ],
    "mean-in-rgb": [
        Example(
            "warning",
            "transform_param { mean_value: [123.68, 116.779, 103.939] }",
            "transform_param { mean_value: [103.939, 116.779, 123.68] }",
            TRANSFORM,
        )
    ],
    "crop-size": [
        Example(
            "error",
            "transform_param { crop_size: 9 }",
            "transform_param { crop_size: 7 }",
            TRANSFORM,
        )
    ],
    "mean-size": [
        Example(
            "error",
            'transform_param { mean_file: "small.binaryproto" }',
            'transform_param { mean_file: "mean.binaryproto" }',
            TRANSFORM,
        )
    ],
    "label-range": [Example("error", FC.replace("num_output: 3", "num_output: 2"), FC, AFTER_DATA)],
    "solver-field": [
        Example("error", "iter_size: 0", "iter_size: 1", IN_SOLVER),
        Example("warning", "", "max_iter: 100", SOLVER.replace("max_iter: 100", "{}")),
    ],
    "poly-max-iter": [
        Example(
            "error",
            'lr_policy: "poly"',
            'lr_policy: "poly"\nmax_iter: 100',
            'net: "net.prototxt"\nbase_lr: 0.1\n{}\nsnapshot: 50\n',
        )
    ],
    "solver-net": [
        Example(
            "error",
            'net: "net.prototxt"\ntrain_net: "net.prototxt"',
            'net: "net.prototxt"',
            SOLVER.replace('net: "net.prototxt"', "{}"),
        )
    ],
    "unused-field": [
        Example(
            "note",
            'lr_policy: "fixed"\ngamma: 0.1',
            'lr_policy: "fixed"',
            SOLVER.replace('lr_policy: "fixed"', "{}"),
        )
    ],
    "growing-rate": [
        Example(
            "warning",
            'lr_policy: "exp"\ngamma: 1.1',
            'lr_policy: "exp"\ngamma: 0.9',
            SOLVER.replace('lr_policy: "fixed"', "{}"),
        )
    ],
    "stepvalue": [
        Example(
            "warning",
            'lr_policy: "multistep"\ngamma: 0.1\nstepvalue: [50, 20]',
            'lr_policy: "multistep"\ngamma: 0.1\nstepvalue: [20, 50]',
            SOLVER.replace('lr_policy: "fixed"', "{}"),
        ),
        Example(
            "note",
            'lr_policy: "step"\ngamma: 0.1\nstepsize: 100',
            'lr_policy: "step"\ngamma: 0.1\nstepsize: 20',
            SOLVER.replace('lr_policy: "fixed"', "{}"),
        ),
    ],
    "momentum": [Example("warning", "momentum: 1", "momentum: 0.9", IN_SOLVER)],
    "clip-before-iter-size": [
        Example("note", "clip_gradients: 5\niter_size: 2", "clip_gradients: 5", IN_SOLVER)
    ],
    "snapshot-folder": [
        Example("error", 'snapshot_prefix: "none/net"', 'snapshot_prefix: "net"', IN_SOLVER)
    ],
    "no-snapshot": [
        Example(
            "warning",
            "snapshot_after_train: false",
            "snapshot: 50",
            SOLVER.replace("snapshot: 50", "{}"),
        )
    ],
    "no-test": [
        Example("warning", "test_interval: 10", "test_interval: 10\ntest_iter: 2", IN_SOLVER),
        Example(
            "note", "test_interval: 200\ntest_iter: 2", "test_interval: 10\ntest_iter: 2", IN_SOLVER
        ),
    ],
}
"""Code -> examples, one for each severity. Files in the examples: ``records``, a database of 8 x 8
images with labels 0 to 2, and their mean, ``mean.binaryproto``."""
