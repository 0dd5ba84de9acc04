"""run: what a trained net says of images."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.exits import MODEL_OR_DATA
from demitasse.cli.images import reading
from demitasse.cli.options import FILE, FOLDER, device_options
from demitasse.cli.streams import tell
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("model", metavar="MODEL", type=FILE)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@click.option("--weights", type=FILE, multiple=True, help="Weights of a net given as a prototxt.")
@click.option(
    "--card",
    "card",
    metavar="NAME",
    default="",
    help="The published card to go by, for weights that are not recognised.",
)
@click.option("--labels", type=FILE, help="Names of the classes, one in a line.")
@click.option("--mean", type=FILE, help="The mean image, .npy or .binaryproto.")
@click.option("--top", type=click.IntRange(min=1), help="Classes, or objects, shown. [default: 5]")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Least score of objects. [default: the card's]",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="The most images that run at once.",
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Of videos and animations, every how manieth frame is looked at.",
)
@click.option("--draw", type=FOLDER, help="Write images with what was found, as PNG, to a folder.")
@click.option("--masks", type=FOLDER, help="Write the class of every pixel, as PNG, to a folder.")
@click.option("--json", "lines", is_flag=True, help="Print a line of JSON for each image.")
@device_options
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    images: tuple[str, ...],
    weights: tuple[Path, ...],
    card: str,
    labels: Path | None,
    mean: Path | None,
    top: int | None,
    threshold: float | None,
    batch: int,
    every: int,
    draw: Path | None,
    masks: Path | None,
    lines: bool,
    device: str | None,
) -> None:
    """Show images to a trained net and print what it says of them.

    MODEL is a model card (.toml), a folder with a card model.toml, a prototxt with --weights, or
    weights with their prototxt beside them; published weights are recognised. IMAGEs are files,
    folders, videos (with OpenCV), or - for names on standard input.

    Images that cannot be read are told of and left out; the verb then ends with 3.
    """
    from demitasse.cli.pictures import Picture, pictures
    from demitasse.cli.told import Pictures, as_json, as_text
    from demitasse.core.text import escaped
    from demitasse.errors import DataError
    from demitasse.inference.cards import load_model

    with reading():
        predictor = load_model(
            model,
            weights,
            card=card,
            labels=labels,
            mean=mean,
            device=device,
            threshold=threshold,
        )
    shown = pictures(images, predictor.color, every)
    drawings = None if draw is None else Pictures(draw)
    classes = None if masks is None else Pictures(masks)
    broken = False
    for picture, answer in predictor.stream(shown, Picture.pixels, batch):
        if isinstance(answer, DataError):
            broken = True
            tell(f"error: {escaped(f'{picture.name}: {answer.message}')}")
        else:
            if drawings is not None:
                drawings.draw(picture, answer)
            if classes is not None:
                classes.mask(picture, answer)
        if lines:
            click.echo(as_json(picture, answer, top))
        elif not isinstance(answer, DataError):
            click.echo(as_text(picture, answer, top))
    if broken:
        ctx.exit(MODEL_OR_DATA)
