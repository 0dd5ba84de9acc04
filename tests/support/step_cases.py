"""Layers that tests of Steps are run on: drawn, or given one by one."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from steps import Case
from windows import convolution_fields, pooling_fields, sizes, windows

Cases = st.SearchStrategy[Case]
Shapes = Sequence[tuple[tuple[int, ...], ...]]
"""For each case the shapes of its bottoms."""


def one_of(*cases: Case) -> Cases:
    return st.sampled_from(cases)


MESSAGES = {
    "BatchNorm": "batch_norm_param",
    "Deconvolution": "convolution_param",
    "InnerProduct": "inner_product_param",
    "Normalize": "norm_param",
    "PriorBox": "prior_box_param",
    "PSROIPooling": "psroi_pooling_param",
    "ROIPooling": "roi_pooling_param",
    "ShuffleChannel": "shuffle_channel_param",
    "SigmoidCrossEntropyLoss": "loss_param",
}


def layers(kind: str, *fields: str, shapes: Shapes, **options: Any) -> Cases:
    """Cases of a layer type: each of the fields with each of the tuples of shapes."""
    message = MESSAGES.get(kind, f"{kind.lower()}_param")
    return one_of(
        *(
            Case(f'type: "{kind}" {f"{message} {{ {each} }}" if each else ""}', bottoms, **options)
            for each in fields or ("",)
            for bottoms in shapes
        )
    )


@st.composite
def convolutions(draw, kind="Convolution", axes=(2,), batches=(1, 2, 17)):
    window = draw(windows(axes, transposed=kind == "Deconvolution"))
    group, bias = draw(st.integers(1, 3)), draw(st.booleans())
    channels, filters = (group * draw(st.integers(1, 4)) for _ in range(2))
    fields = (
        f"num_output: {filters} group: {group} bias_term: {str(bias).lower()} "
        f"{convolution_fields(window)}"
    )
    shape = (draw(st.sampled_from(batches)), channels, *sizes(window))
    return Case(f'type: "{kind}" convolution_param {{ {fields} }}', (shape,))


@st.composite
def poolings(draw, axes=(2,), methods=("MAX", "AVE"), tops=(1,)):
    window = draw(windows(axes, pooling=True))
    fields = (
        f"pool: {draw(st.sampled_from(methods))} {pooling_fields(window)} "
        f"round_mode: {draw(st.sampled_from(['CEIL', 'FLOOR']))}"
    )
    shape = (2, draw(st.sampled_from([1, 3, 16])), *[max(a.size, window[0].kernel) for a in window])
    return Case(
        f'type: "Pooling" pooling_param {{ {fields} }}',
        (shape,),
        tops=draw(st.sampled_from(tops)),
        values=(draw(st.sampled_from(["normal", "ties"])),),
    )


@st.composite
def inner_products(draw, transpose=False):
    rows, k, m = draw(st.integers(1, 40)), draw(st.integers(1, 50)), draw(st.integers(1, 40))
    fields = (
        f"num_output: {m} bias_term: {str(draw(st.booleans())).lower()} "
        f"transpose: {str(transpose).lower()} axis: {draw(st.sampled_from([1, 2]))}"
    )
    axis_2 = "axis: 2" in fields
    return Case(
        f'type: "InnerProduct" inner_product_param {{ {fields} }}',
        ((2, rows, k) if axis_2 else (rows, k, 2),),
    )


@st.composite
def lrns(draw, region, channels):
    fields = (
        f"norm_region: {region} local_size: {draw(st.sampled_from([1, 3, 5, 9]))} "
        f"beta: {draw(st.sampled_from([0.75, 0.5, 1.3]))} "
        f"alpha: {draw(st.sampled_from([1e-4, 0.7]))} k: {draw(st.sampled_from([1, 2.5]))}"
    )
    shape = (draw(st.integers(1, 3)), draw(st.sampled_from(channels)), *draw(SIDES))
    return Case(f'type: "LRN" lrn_param {{ {fields} }}', (shape,))


SIDES = st.tuples(st.integers(1, 6), st.integers(1, 6))


@st.composite
def recurrent(draw, kind):
    steps, rows, k, m = (draw(st.integers(1, 4)) for _ in range(4))
    static, exposed = draw(st.booleans()), draw(st.booleans())
    shapes, values = [(steps, rows, k), (steps, rows)], ["normal", "marks"]
    if static:
        shapes, values = [*shapes, (rows, 3)], [*values, "normal"]
    states = (2 if kind == "LSTM" else 1) * exposed
    fields = f"num_output: {m} expose_hidden: {str(exposed).lower()}"
    return Case(
        f'type: "{kind}" recurrent_param {{ {fields} }}',
        (*shapes, *[(1, rows, m)] * states),
        tops=1 + states,
        values=(*values, *["state"] * states),
    )


def losses(**options):
    rules = [
        f"{ignore} normalization: {mode}"
        for mode in ("FULL", "VALID", "BATCH_SIZE", "NONE")
        for ignore in ("", "ignore_label: 2", "ignore_label: -1")
    ]
    return one_of(
        *(
            Case(
                f'type: "SoftmaxWithLoss" softmax_param {{ axis: {axis} }} loss_param {{ {rule} }}',
                shapes,
                values=("normal", "labels"),
                **options,
            )
            for rule in rules
            for axis, shapes in (
                (1, ((6, 4), (6,))),
                (1, ((2, 4, 3, 2), (2, 3, 2))),
                (-1, ((2, 3, 4), (2, 3))),
            )
        )
    )
