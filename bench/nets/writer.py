"""Prototxt, written layer by layer."""

__all__ = ["Writer"]


class Writer:
    """Collects the layers of a net; each method returns the name of what it makes.

    Args:
        name: Of the net.
        shape: Of the input "data", (N, C, H, W).
        train: Whether the net ends in a loss and has an input "label", (N,).

    Attributes:
        last: What the next layer reads where it is not told.
        train: As given.
    """

    def __init__(self, name: str, shape: tuple[int, ...], train: bool) -> None:
        self.train, self.last = train, "data"
        self._lines = [f'name: "{name}"']
        self._input("data", shape)
        if train:
            self._input("label", shape[:1])

    def layer(self, kind: str, name: str, fields: str = "", *bottoms: str, top: str = "") -> str:
        """A layer of any type."""
        reads = " ".join(f'bottom: "{b}"' for b in bottoms or (self.last,))
        self.last = top or name
        line = f'layer {{ name: "{name}" type: "{kind}" {reads} top: "{self.last}" {fields}'
        self._lines.append(line.rstrip() + " }")
        return self.last

    def conv(
        self, name: str, outputs: int, kernel: int, *bottoms: str, stride: int = 1, pad: int = 0,
        group: int = 1, bias: bool = True, filler: str = "msra",
    ) -> str:  # fmt: skip
        """A convolution."""
        fields = f"num_output: {outputs} kernel_size: {kernel}"
        for field, value, usual in (("stride", stride, 1), ("pad", pad, 0), ("group", group, 1)):
            fields += f" {field}: {value}" if value != usual else ""
        fields += "" if bias else " bias_term: false"
        fields = f'convolution_param {{ {fields} weight_filler {{ type: "{filler}" }} }}'
        return self.layer("Convolution", name, fields, *bottoms)

    def pool(
        self, name: str, kernel: int, stride: int, *bottoms: str, pad: int = 0, kind: str = "MAX"
    ) -> str:
        """A pooling layer."""
        fields = f"pool: {kind} kernel_size: {kernel} stride: {stride}"
        fields += f" pad: {pad}" if pad else ""
        return self.layer("Pooling", name, f"pooling_param {{ {fields} }}", *bottoms)

    def mean(self, name: str) -> str:
        """The mean of each channel."""
        return self.layer("Pooling", name, "pooling_param { pool: AVE global_pooling: true }")

    def ip(self, name: str, outputs: int) -> str:
        """A fully connected layer."""
        filler = 'weight_filler { type: "xavier" }'
        fields = f"inner_product_param {{ num_output: {outputs} {filler} }}"
        return self.layer("InnerProduct", name, fields)

    def relu(self, name: str) -> str:
        """Keep what is positive, in place."""
        return self.layer("ReLU", name, top=self.last)

    def lrn(self, name: str) -> str:
        """Normalise across five channels."""
        return self.layer("LRN", name, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")

    def bn(self, name: str) -> str:
        """Batch normalisation with its scale and bias, in place."""
        self.layer("BatchNorm", f"bn_{name}", top=self.last)
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

    def end(self) -> str:
        """Finish with probabilities "prob" or a loss "loss", and return the whole text."""
        if self.train:
            self.layer("SoftmaxWithLoss", "loss", "", self.last, "label")
        else:
            self.layer("Softmax", "prob")
        return "\n".join(self._lines) + "\n"

    def _input(self, name: str, shape: tuple[int, ...]) -> None:
        dims = " ".join(f"dim: {n}" for n in shape)
        fields = f"input_param {{ shape {{ {dims} }} }}"
        self._lines.append(f'layer {{ name: "{name}" type: "Input" top: "{name}" {fields} }}')
