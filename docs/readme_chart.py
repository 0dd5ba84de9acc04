"""Write the README's charts of speed: ``python docs/readme_chart.py``."""

import json
from pathlib import Path

from peers_page import FOUND, fastest_peer_ratio
from ratio_chart import ratio_chart

__all__ = ["readme_charts", "write_charts"]

ASSETS = Path(__file__).parent / "assets"

INKS = {"light": ("#1f2328", "#8a6f5c"), "dark": ("#e6edf3", "#c8a58a")}
"""Colors of text and of bars on each background."""

PANELS = (
    (
        "inference",
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
        "training",
        "Training, one step",
        "step",
        None,
        ("vgg16", "cifar10_quick", "caffenet", "lenet", "googlenet", "resnet18", "resnet50"),
    ),
)
"""File, title, kind of case, batch size (None: any) and nets of each chart."""

NAMES = {
    "vgg16": "VGG-16", "segnet": "SegNet", "googlenet": "GoogLeNet", "resnet18": "ResNet-18",
    "fcn": "FCN", "squeezenet": "SqueezeNet", "densenet121": "DenseNet-121",
    "resnet50": "ResNet-50", "cifar10_quick": "CIFAR-10 quick", "caffenet": "CaffeNet",
    "lenet": "LeNet",
}  # fmt: skip


def readme_charts(path: Path = FOUND) -> dict[Path, str]:
    """Return the charts by their files, for light and dark backgrounds."""
    results = [one for one in json.loads(path.read_text())["results"] if not one["loops"]]
    return {
        ASSETS / f"{name}-{scheme}.svg": ratio_chart(
            title, _ratios(results, kind, batch, nets), ink, (bar, bar)
        )
        for name, title, kind, batch, nets in PANELS
        for scheme, (ink, bar) in INKS.items()
    }


def _ratios(
    results: list[dict[str, object]], kind: str, batch: int | None, nets: tuple[str, ...]
) -> list[tuple[str, float, str]]:
    """Return name, ratio and no remark of each measured net, the largest ratio first."""
    found = {}
    for result in results:
        net, size, what = str(result["case"]).split(":")
        ratio = fastest_peer_ratio(result)
        if net in nets and what == kind and batch in {None, int(size)} and ratio:
            found[NAMES[net]] = ratio[1]
    return [(name, found[name], "") for name in sorted(found, key=lambda name: -found[name])]


def write_charts() -> None:
    """Write the charts beside the pages."""
    for path, chart in readme_charts().items():
        path.write_text(chart, encoding="utf-8")


if __name__ == "__main__":
    write_charts()
