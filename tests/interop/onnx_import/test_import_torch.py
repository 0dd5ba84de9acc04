"""Models of PyTorch, written by its exporters, imported and held against ONNX Runtime."""

import numpy as np
import pytest

from demitasse.interop.onnx_import import import_onnx

torch = pytest.importorskip("torch", reason="needs PyTorch: nox -s frameworks")
pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")
pytestmark = pytest.mark.filterwarnings("ignore")
nn, functional = torch.nn, torch.nn.functional


class Residual(nn.Module):
    def __init__(self, less, more, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(less, more, 3, stride, 1, bias=False), nn.BatchNorm2d(more), nn.ReLU(),
            nn.Conv2d(more, more, 3, 1, 1, bias=False), nn.BatchNorm2d(more),
        )  # fmt: skip
        self.short = nn.Conv2d(less, more, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return functional.relu(self.body(x) + self.short(x))


class Inverted(nn.Module):
    def __init__(self, channels, activation):
        super().__init__()
        wide = 2 * channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1), activation,
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide), nn.BatchNorm2d(wide), activation,
        )  # fmt: skip
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide, 1),
                                  nn.Hardsigmoid())  # fmt: skip
        self.last = nn.Conv2d(wide, channels, 1)

    def forward(self, x):
        found = self.body(x)
        return x + self.last(found * self.gate(found))


class UNet(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(24, 4, 3, padding=1)

    def forward(self, x):
        first = functional.elu(self.down(x))
        deep = functional.gelu(self.deep(functional.max_pool2d(first, 2)))
        if self.mode == "transposed":
            large = self.up(deep)
        else:
            corners = {"align_corners": False} if self.mode == "bilinear" else {}
            large = functional.interpolate(deep, scale_factor=2, mode=self.mode, **corners)
        return self.last(torch.cat([first, large], 1)).argmax(1)


class Sequences(nn.Module):
    def __init__(self, both):
        super().__init__()
        self.lstm = nn.LSTM(5, 7, bidirectional=both)
        self.last = nn.Linear(14 if both else 7, 3)

    def forward(self, x):
        found, (hidden, cells) = self.lstm(x)
        return self.last(found), hidden, cells


class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Sequential(nn.PReLU(6), nn.InstanceNorm2d(6, affine=True),
                                  nn.GroupNorm(2, 6), nn.LayerNorm(8))  # fmt: skip
        self.conv = nn.Conv2d(6, 8, 3, (1, 2), (1, 0), dilation=(1, 2))
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)

    def forward(self, x):
        first, second = self.norm(x).chunk(2, 1)
        joined = torch.cat([second, first], 1)
        groups = joined.view(joined.size(0), 2, 3, 9, 8).transpose(1, 2).reshape(joined.shape)
        found = self.conv(functional.pad(groups, (1, 0, 0, 1)))
        large = functional.pixel_shuffle(self.up(found), 2).clamp(-1, 1)
        return large, functional.normalize(found), groups[:, :, ::2, 1:-1], found.mean((1, 3))


MODELS = {
    "lenet": lambda: (
        nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5),
                      nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 10),
                      nn.LogSoftmax(1)),
        (2, 1, 28, 28),
    ),
    "resnet": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Residual(8, 8, 1),
                      Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                      nn.Linear(16, 10), nn.Softmax(1)),
        (2, 3, 33, 33),
    ),
    "mobilenet": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Inverted(8, nn.ReLU6()),
                      Inverted(8, nn.Hardswish()), Inverted(8, nn.SiLU()),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
        (2, 3, 32, 32),
    ),
    "vgg": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(8, 8, 3, 1, 1), nn.LeakyReLU(0.1),
                      nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, 2, 1, ceil_mode=True),
                      nn.Flatten(), nn.Linear(200, 32), nn.Dropout(), nn.Linear(32, 7)),
        (2, 3, 34, 34),
    ),
    "unet transposed": lambda: (UNet("transposed"), (2, 3, 16, 12)),
    "unet bilinear": lambda: (UNet("bilinear"), (2, 3, 16, 12)),
    "unet nearest": lambda: (UNet("nearest"), (2, 3, 16, 12)),
    "lstm": lambda: (Sequences(both=False), (6, 2, 5)),
    "lstm in both directions": lambda: (Sequences(both=True), (6, 2, 5)),
    "moves": lambda: (Moves(), (2, 6, 9, 8)),
}  # fmt: skip


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_pytorch_is_right(name, exporter, tmp_path):
    if exporter == "dynamo":
        pytest.importorskip("onnxscript", reason="needs onnxscript, which exports by dynamo")
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    x = torch.randn(shape)
    file = tmp_path / "net.onnx"
    torch.onnx.export(model.eval(), (x,), str(file), dynamo=exporter == "dynamo")

    done = import_onnx(file)
    found = done.compare()

    assert found.worst.relative < 1e-5, found.explain(found.worst)
    done.net.set_input(done.net.inputs[0], x.numpy())
    done.net.forward()
    with torch.no_grad():
        wanted = model(x)
    first = wanted[0] if isinstance(wanted, tuple) else wanted
    assert any(
        blob.shape == tuple(first.shape)
        and np.allclose(blob.cpu_data(), first.numpy(), rtol=1e-4, atol=1e-5)
        for blob in (done.net.blobs[output] for output in done.net.outputs)
    )
