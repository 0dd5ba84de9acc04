"""Write the README's chart of speed: ``python docs/readme_chart.py``."""

import json
from html import escape
from pathlib import Path

from peers_page import FOUND, fastest_peer_ratio

__all__ = ["readme_chart", "write_charts"]

ASSETS = Path(__file__).parent / "assets"

INKS = {"light": ("#1f2328", "#8a6f5c"), "dark": ("#e6edf3", "#c8a58a")}
"""Colors of text and of bars on each background."""

PANELS = (
    (
        "Inference, one image",
        "forward",
        1,
        (
            "vgg16",
            "segnet",
            "googlenet",
            "resnet18",
            "fcn",
            "squeezenet",
            "densenet121",
            "resnet50",
        ),
    ),
    (
        "Training, one step",
        "step",
        None,
        ("vgg16", "cifar10_quick", "caffenet", "lenet", "googlenet", "resnet18", "resnet50"),
    ),
)
"""Title, kind of case, batch size (None: any) and nets of each panel."""

NAMES = {
    "vgg16": "VGG-16", "segnet": "SegNet", "googlenet": "GoogLeNet", "resnet18": "ResNet-18",
    "fcn": "FCN", "squeezenet": "SqueezeNet", "densenet121": "DenseNet-121",
    "resnet50": "ResNet-50", "cifar10_quick": "CIFAR-10 quick", "caffenet": "CaffeNet",
    "lenet": "LeNet",
}  # fmt: skip

WIDTH, LABELS, BARS, MOST = 440, 110, 270, 4.0
"""Widths of a panel, its labels and its longest bar, in pixels, and the ratio of that bar."""

ROW, HEAD, FOOT = 24, 56, 30
"""Heights of a row, of the title and of the axis, in pixels."""


def readme_chart(scheme: str, path: Path = FOUND) -> str:
    """Return the chart as an SVG file's text, for ``scheme`` "light" or "dark"."""
    ink, bar = INKS[scheme]
    results = [one for one in json.loads(path.read_text())["results"] if not one["loops"]]
    rows = max(len(nets) for *_, nets in PANELS)
    width, height = WIDTH * len(PANELS), HEAD + ROW * rows + FOOT
    title = "Speed relative to the fastest of PyTorch, ONNX Runtime and OpenVINO"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-size="13" fill="{ink}" '
        'font-family="system-ui, sans-serif">',
        f"<title>{title}</title>",
    ]
    for number, (name, kind, batch, nets) in enumerate(PANELS):
        ratios = _ratios(results, kind, batch, nets)
        parts += _panel(number * WIDTH, name, ratios, ink, bar)
    return "\n".join([*parts, "</svg>\n"])


def _ratios(
    results: list[dict[str, object]], kind: str, batch: int | None, nets: tuple[str, ...]
) -> list[tuple[str, float]]:
    """Return name and ratio of each net that was measured, the largest ratio first."""
    found = {}
    for result in results:
        net, size, what = str(result["case"]).split(":")
        ratio = fastest_peer_ratio(result)
        if net in nets and what == kind and batch in {None, int(size)} and ratio:
            found[NAMES[net]] = ratio[1]
    return sorted(found.items(), key=lambda item: -item[1])


def _panel(left: int, title: str, ratios: list[tuple[str, float]], ink: str, bar: str) -> list[str]:
    scale = BARS / MOST
    parts = [f'<text x="{left + LABELS}" y="18" font-weight="600">{escape(title)}</text>']
    bottom = HEAD + ROW * len(ratios)
    for tick in range(1, int(MOST) + 1):
        x = left + LABELS + tick * scale
        style = f'stroke="{ink}" stroke-opacity="{0.9 if tick == 1 else 0.15}"'
        dash = ' stroke-dasharray="4 3"' if tick == 1 else ""
        parts.append(f'<line x1="{x}" x2="{x}" y1="{HEAD - 10}" y2="{bottom}" {style}{dash}/>')
        parts.append(
            f'<text x="{x}" y="{HEAD - 16}" font-size="11" text-anchor="middle">{tick}x</text>'
        )
    for number, (name, ratio) in enumerate(ratios):
        y, length = HEAD + number * ROW, ratio * scale
        x = left + LABELS
        parts += [
            f'<text x="{x - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{x}" y="{y}" width="{length:.1f}" height="17" rx="2" fill="{bar}"/>',
            f'<text x="{x + length + 6:.1f}" y="{y + 13}">{ratio:.2f}</text>',
        ]
    return parts


def write_charts() -> None:
    """Write the chart for light and dark backgrounds beside the pages."""
    for scheme in INKS:
        (ASSETS / f"ratios-{scheme}.svg").write_text(readme_chart(scheme), encoding="utf-8")


if __name__ == "__main__":
    write_charts()
