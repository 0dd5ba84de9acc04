"""card: write a model card."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.images import reading
from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb


def _show_list(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Print the published cards and end."""
    del param
    if not wanted:
        return
    from demitasse.cli.output import table
    from demitasse.inference.cards.published import published

    rows = [(one.key, one.name, "yes" if one.recognisable else "no") for one in published()]
    click.echo(table(("card", "model", "recognised"), rows))
    ctx.exit()


@click.command(cls=Verb)
@click.argument("net", type=FILE)
@click.argument("weights", metavar="WEIGHTS...", nargs=-1, required=True, type=FILE)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_list,
    help="Show the published cards, and end.",
)
@click.option("--out", type=FILE, help="The card's file. [default: model.toml beside NET]")
@click.option("--overwrite", is_flag=True, help="Replace a card that is there.")
@click.option("--card", "known", metavar="NAME", help="Begin with this published card.")
@click.option(
    "--train",
    type=FILE,
    help="The prototxt of the training, which says mean, scale, crop and size.",
)
@click.option(
    "--task",
    type=click.Choice(["classify", "detect", "segment", "features"]),
    help="What the net does.",
)
@click.option(
    "--channels", type=click.Choice(["bgr", "rgb", "gray"]), help="Order of the net's channels."
)
@click.option("--size", metavar="PIXELS|H,W", help="Size that images are brought to.")
@click.option(
    "--resize",
    type=click.Choice(["warp", "short side", "none"]),
    help="To --size whatever the shape, by the short side, or not at all. [default: warp]",
)
@click.option("--crop", metavar="PIXELS|H,W", help="Size of what is cut out of the middle.")
@click.option(
    "--mean",
    metavar="NUMBERS|FILE|none",
    help="What is subtracted from pixels of 0 to 255: a number for each channel with commas "
    "between them, a file, or none.",
)
@click.option("--scale", metavar="NUMBERS", help="The factor after that. [default: 1]")
@click.option("--labels", type=FILE, help="Names of the classes, one in a line.")
@click.option("--input", "input_", metavar="BLOB", help="The net's input, where it has several.")
@click.option("--output", metavar="BLOB", multiple=True, help="The blobs to read.")
@click.option("--softmax", is_flag=True, help="Bring scores of classes to probabilities.")
@click.option("--name", help="What the model is called. [default: the net's name]")
@click.option("--source", help="Where the model comes from.")
@click.option("--licence", help="Under what terms.")
def command(
    net: Path,
    weights: tuple[Path, ...],
    out: Path | None,
    overwrite: bool,
    known: str | None,
    train: Path | None,
    labels: Path | None,
    mean: str | None,
    softmax: bool,
    **flags: object,
) -> None:
    """Write a model card, with which `demitasse run` and dm.load_model know how to use a net.

    For published weights everything is known. Of others, what NET and --train do not say has to
    be said by flags. The card names files by their places in its folder, and the model is loaded
    to see that it works.
    """
    from demitasse.cli.drafting import Draft, drafted
    from demitasse.core.atomic import atomic_write
    from demitasse.inference.cards.predictor import Predictor
    from demitasse.inference.cards.reading import CARD
    from demitasse.inference.cards.writing import card_text

    path = out or net.parent / CARD
    if path.exists() and not overwrite:
        message = f"{path} is there; --overwrite replaces it, --out names another file"
        raise click.UsageError(message)
    with reading():
        draft = Draft(net, weights, known or "", train, labels, mean, softmax, flags)
        card, label_file = drafted(draft)
        Predictor(card, device="numpy").net.close()
        text = card_text(card, path.parent, label_file)
    with atomic_write(path) as file:
        file.write(text.encode())
    click.echo(f"Wrote {path}: demitasse run {path} IMAGE...")
