"""A residual net as Caffe's nets say it, and as a module of PyTorch has it."""

from typing import Any

BLOCKS = [(8, 1), (16, 2)]
"""Channels and stride of each stage, of two blocks."""


def prototxt() -> str:
    """A ResNet-18 in small: two stages, BatchNorm and Scale apart."""
    lines = [
        """layer { name: "data" type: "Input" top: "data"
          input_param { shape { dim: 2 dim: 3 dim: 32 dim: 32 } } }""",
        _conv("conv1", "data", 8, 7, 2, 3) + _bn("conv1", "1") + _relu("conv1"),
        """layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
          pooling_param { kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR } }""",
    ]
    x, before = "pool1", 8
    for stage, (channels, stride) in enumerate(BLOCKS, start=2):
        for block, step in (("a", stride), ("b", 1)):
            name = f"res{stage}{block}"
            shortcut = x
            lines += [
                _conv(f"{name}_1", x, channels, 3, step, 1) + _bn(f"{name}_1", f"{name}_1"),
                _relu(f"{name}_1"),
                _conv(f"{name}_2", f"{name}_1", channels, 3, 1, 1) + _bn(f"{name}_2", f"{name}_2"),
            ]
            if step != 1 or before != channels:
                shortcut = f"{name}_s"
                lines += [_conv(shortcut, x, channels, 1, step, 0) + _bn(shortcut, shortcut)]
            lines += [
                f'layer {{ name: "{name}" type: "Eltwise" bottom: "{shortcut}" '
                f'bottom: "{name}_2" top: "{name}" }}',
                _relu(name),
            ]
            x, before = name, channels
    lines += [
        f"""layer {{ name: "pool5" type: "Pooling" bottom: "{x}" top: "pool5"
          pooling_param {{ pool: AVE global_pooling: true }} }}
        layer {{ name: "fc" type: "InnerProduct" bottom: "pool5" top: "fc"
          inner_product_param {{ num_output: 10 }} }}"""
    ]
    return "\n".join(lines)


def module(torch: Any) -> Any:
    """The same as it is written for PyTorch, with random weights and statistics."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, into: int, out: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(out)
            self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(out)
            self.downsample = None
            if stride != 1 or into != out:
                self.downsample = nn.Sequential(
                    nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
                )

        def forward(self, x: Any) -> Any:
            shortcut = x if self.downsample is None else self.downsample(x)
            y = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(y)) + shortcut)

    class ResNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(8)
            self.pool = nn.MaxPool2d(3, 2, 1)
            before, stages = 8, []
            for channels, stride in BLOCKS:
                stages.append(
                    nn.Sequential(Block(before, channels, stride), Block(channels, channels, 1))
                )
                before = channels
            self.layer1, self.layer2 = stages
            self.fc = nn.Linear(before, 10)

        def forward(self, x: Any) -> Any:
            y = self.pool(torch.relu(self.bn1(self.conv1(x))))
            return self.fc(self.layer2(self.layer1(y)).mean((2, 3)))

    torch.manual_seed(3)
    made = ResNet()
    for one in made.modules():
        if isinstance(one, nn.BatchNorm2d):
            nn.init.normal_(one.weight, 1, 0.2)
            nn.init.normal_(one.bias, 0, 0.2)
            nn.init.normal_(one.running_mean, 0, 0.3)
            nn.init.uniform_(one.running_var, 0.5, 2)
    return made.eval()


def _conv(name: str, bottom: str, out: int, kernel: int, stride: int, pad: int) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: {out} kernel_size: {kernel} stride: {stride} "
        f"pad: {pad} bias_term: false }} }}\n"
    )


def _bn(blob: str, name: str) -> str:
    return (
        f'layer {{ name: "bn{name}" type: "BatchNorm" bottom: "{blob}" top: "{blob}" }}\n'
        f'layer {{ name: "scale{name}" type: "Scale" bottom: "{blob}" top: "{blob}" '
        "scale_param { bias_term: true } }\n"
    )


def _relu(blob: str) -> str:
    return f'layer {{ name: "{blob}_relu" type: "ReLU" bottom: "{blob}" top: "{blob}" }}\n'
