"""Prototxt, written layer by layer."""

__all__ = ["Writer"]

Pair = int | tuple[int, int]
"""A size for both axes, or for rows and columns."""


class Writer:
    """Collects the layers of a net; each method returns the name of what it makes.

    Args:
        name: Of the net.
        shape: Of the input "data", (N, C, H, W).
        train: Whether the net ends in a loss and has an input "label".
        labels: Shape of "label"; (N,) where it is not told.

    Attributes:
        last: What the next layer reads where it is not told.
        train: As given.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], train: bool, labels: tuple[int, ...] = ()
    ) -> None:
        self.train, self.last = train, "data"
        self._lines = [f'name: "{name}"']
        self.input("data", shape)
        if train:
            self.input("label", labels or shape[:1])

    def layer(self, kind: str, name: str, fields: str = "", *bottoms: str, top: str = "") -> str:
        """A layer of any type."""
        reads = " ".join(f'bottom: "{b}"' for b in bottoms or (self.last,))
        self.last = top or name
        line = f'layer {{ name: "{name}" type: "{kind}" {reads} top: "{self.last}" {fields}'
        self._lines.append(line.rstrip() + " }")
        return self.last

    def conv(
        self, name: str, outputs: int, kernel: Pair, *bottoms: str, stride: int = 1, pad: Pair = 0,
        dilation: int = 1, group: int = 1, bias: bool = True, filler: str = "msra",
    ) -> str:  # fmt: skip
        """A convolution."""
        fields = f"num_output: {outputs} {_sizes('kernel', kernel)}"
        fields += f" {_sizes('pad', pad)}" if pad else ""
        for field, value in (("stride", stride), ("dilation", dilation), ("group", group)):
            fields += f" {field}: {value}" if value != 1 else ""
        fields += "" if bias else " bias_term: false"
        fields = f'convolution_param {{ {fields} weight_filler {{ type: "{filler}" }} }}'
        return self.layer("Convolution", name, fields, *bottoms)

    def conv_bn_relu(self, name: str, outputs: int, kernel: int, **options: int) -> str:
        """A convolution without bias, its normalisation, and a ReLU."""
        self.conv(name, outputs, kernel, bias=False, **options)
        self.bn(name)
        return self.relu(f"relu_{name}")

    def deconv(
        self, name: str, outputs: int, kernel: int, stride: int, pad: int = 0, bias: bool = False,
        group: int = 1,
    ) -> str:  # fmt: skip
        """A deconvolution."""
        fields = f"num_output: {outputs} kernel_size: {kernel} stride: {stride}"
        fields += (f" pad: {pad}" if pad else "") + ("" if bias else " bias_term: false")
        fields += f" group: {group}" if group != 1 else ""
        fields += ' weight_filler { type: "msra" }'
        return self.layer("Deconvolution", name, f"convolution_param {{ {fields} }}")

    def lstm(self, name: str, outputs: int, cont: str) -> str:
        """An LSTM over the first axis; ``cont`` says where sequences go on."""
        filler = 'weight_filler { type: "xavier" } bias_filler { type: "constant" }'
        fields = f"recurrent_param {{ num_output: {outputs} {filler} }}"
        return self.layer("LSTM", name, fields, self.last, cont)

    def pool(
        self, name: str, kernel: int, stride: int, *bottoms: str, pad: int = 0,
        kind: str = "MAX", mask: str = "",
    ) -> str:  # fmt: skip
        """A pooling layer; a ``mask`` is a second top, that says where the largest were."""
        fields = f"pool: {kind} kernel_size: {kernel} stride: {stride}"
        fields += f" pad: {pad}" if pad else ""
        fields = f"pooling_param {{ {fields} }}"
        second = f'top: "{mask}" ' if mask else ""
        return self.layer("Pooling", name, second + fields, *bottoms)

    def mean(self, name: str) -> str:
        """The mean of each channel."""
        return self.layer("Pooling", name, "pooling_param { pool: AVE global_pooling: true }")

    def ip(self, name: str, outputs: int, axis: int = 1) -> str:
        """A fully connected layer."""
        fields = f'num_output: {outputs} weight_filler {{ type: "xavier" }}'
        fields += f" axis: {axis}" if axis != 1 else ""
        fields = f"inner_product_param {{ {fields} }}"
        return self.layer("InnerProduct", name, fields)

    def relu(self, name: str) -> str:
        """Keep what is positive, in place."""
        return self.layer("ReLU", name, top=self.last)

    def lrn(self, name: str) -> str:
        """Normalise across five channels."""
        return self.layer("LRN", name, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")

    def bn(self, name: str, top: str = "") -> str:
        """Batch normalisation with its scale and bias, in place where no ``top`` is named."""
        self.layer("BatchNorm", f"bn_{name}", top=top or self.last)
        return self.layer(
            "Scale", f"scale_{name}", "scale_param { bias_term: true }", top=self.last
        )

    def concat(self, name: str, *bottoms: str) -> str:
        """Channels joined one after the other."""
        return self.layer("Concat", name, "", *bottoms)

    def add(self, name: str, *bottoms: str) -> str:
        """The sum of several."""
        return self.layer("Eltwise", name, "eltwise_param { operation: SUM }", *bottoms)

    def dropout(self, name: str, ratio: float) -> None:
        """Dropout, in nets that do not train.

        Where they do it is left out, since the results of random masks could not be compared.
        """
        if not self.train:
            self.layer(
                "Dropout", name, f"dropout_param {{ dropout_ratio: {ratio} }}", top=self.last
            )

    def end(self, axis: int = 1) -> str:
        """Finish with probabilities "prob" or a loss "loss", and return the whole text."""
        fields = f"softmax_param {{ axis: {axis} }}" if axis > 1 else ""
        if self.train:
            self.layer("SoftmaxWithLoss", "loss", fields, self.last, "label")
        else:
            self.layer("Softmax", "prob", fields)
        return self.text()

    def end_image(self, shape: tuple[int, ...], train: bool) -> str:
        """Return the whole text; to ``train``, finish with the distance from an image "target"."""
        if train:
            self.input("target", shape)
            self.layer("EuclideanLoss", "loss", "", self.last, "target")
        return self.text()

    def text(self) -> str:
        """Return all that was written."""
        return "\n".join(self._lines) + "\n"

    def input(self, name: str, shape: tuple[int, ...]) -> None:
        """An input of the net."""
        dims = " ".join(f"dim: {n}" for n in shape)
        fields = f"input_param {{ shape {{ {dims} }} }}"
        self._lines.append(f'layer {{ name: "{name}" type: "Input" top: "{name}" {fields} }}')


def _sizes(field: str, size: Pair) -> str:
    """Return a field of a window's size."""
    if isinstance(size, int):
        return f"{field}{'_size' if field == 'kernel' else ''}: {size}"
    return f"{field}_h: {size[0]} {field}_w: {size[1]}"
