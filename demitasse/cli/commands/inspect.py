"""summary, lint, explain and draw_net: show nets and find their mistakes.

Source: Caffe, ``python/draw_net.py``.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli import options
from demitasse.cli.command import Command
from demitasse.cli.errors import MODEL_OR_DATA, echo, fail, print_stderr
from demitasse.cli.options import FILE, json_option, option, switch
from demitasse.cli.render import print_json, show, table, terminal_width
from demitasse.core.text import bytes_text, escaped

if TYPE_CHECKING:
    from demitasse.core.memory_info import MemoryInfo


@click.command(cls=Command)
@click.argument("net", type=FILE)
@options.phase_option("TEST")
@options.state_options
@switch("--runs", "Also print the code of each layer on the device, and why no faster code runs.")
@options.device_options
@json_option
def summary_command(
    net: Path, phase: str, state: dict[str, Any], runs: bool, device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show a net's layers, parameters, work and memory.

    NET is a prototxt or an .onnx file.

    Work and bytes are those of a forward pass, computed from the shapes: multiply-adds, and the
    bytes that layers read and write.
    """
    from demitasse.cli.evaluation import open_net
    from demitasse.cli.timing import capture_status, layer_table
    from demitasse.net.summary import net_summary, shapes_text, without_split_layers
    from demitasse.plan.report import report

    # shapes need no device; --runs does
    where = device if runs else "numpy"
    with open_net(net, phase, device=where, **state) as made:
        found, memory = net_summary(made), _memory_of(device)
        found["memory"] = asdict(memory)
        if runs:
            made.reshape()
            found["device"], layers = str(made.device), report(made.plan)
            found["runs"] = [asdict(layer) for layer in layers]
            found["launching"] = capture_status(made)
    if as_json:
        print_json(found)
        return
    layers_shown = without_split_layers(found["layers"])
    rows = [
        (one["name"], one["type"], ", ".join(one["bottoms"]), ", ".join(one["tops"]),
         shapes_text(list(one["tops"].values())), one["parameters"], one["multiply_adds"],
         bytes_text(one["bytes_moved"]))
        for one in layers_shown
    ]  # fmt: skip
    head = ("layer", "type", "bottom", "top", "shape", "parameters", "multiply-adds", "moved")
    total, name = found["total"], escaped(str(found["name"] or net), one_line=True)
    splits = len(found["layers"]) - len(layers_shown)
    hidden = f" and {splits:,} Split layer{'' if splits == 1 else 's'}" if splits else ""
    show(
        f"{name}, phase {found['phase']}\n\n{table(head, rows, whole=head[:4])}\n\n"
        f"{len(layers_shown):,} layers{hidden}, {total['parameters']:,} parameters "
        f"({bytes_text(total['parameter_bytes'])}), "
        f"{total['multiply_adds']:,} multiply-adds in a forward pass, in which layers read and "
        f"write {bytes_text(total['bytes_moved'])}\n"
        f"tops: {bytes_text(total['top_bytes'])} of data, and as much of gradients in training "
        f"(Caffe's figure: {total['memory_used']:,} bytes)\n"
        f"memory of {memory.device}: {memory}"
    )
    if runs:
        shown = filter(None, (layer_table(layers), found["launching"]))
        show(f"\nOn {found['device']}:\n\n" + "\n\n".join(shown))


def _memory_of(device: str | None) -> MemoryInfo:
    """Return the memory of the chosen device; of ``cpu`` where a setting names an absent one."""
    from demitasse.core.device import Device, choose_device
    from demitasse.errors import DeviceError

    try:
        return choose_device(device)[0].memory_info()
    except DeviceError:
        if device is not None:
            raise
        return Device("cpu").memory_info()


@click.command(cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@switch("--strict", "Treat warnings as errors.")
@json_option
@click.pass_context
def lint_command(ctx: click.Context, files: tuple[Path, ...], strict: bool, as_json: bool) -> None:
    """Find mistakes in nets and solvers.

    FILEs are prototxt. Nothing is run; data files are read if they exist. Exits with 3 if there
    are errors.
    """
    from demitasse.cli.excerpts import excerpt_of
    from demitasse.lint import lint

    findings = [finding for file in files for finding in lint(file)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            show(str(finding))
            if terminal_width():  # programs read one line for each finding
                for line in excerpt_of(finding.where, finding.message):
                    echo(line)
        severities = [finding.severity for finding in findings]
        counts = {name: severities.count(name) for name in ("error", "warning", "note")}
        parts = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items() if n]
        echo(", ".join(parts) or "nothing found")
        if findings:
            print_stderr(f"to explain: demitasse explain {findings[0].code}")
    bad = {"error", "warning"} if strict else {"error"}
    if any(finding.severity in bad for finding in findings):
        ctx.exit(MODEL_OR_DATA)


@click.command(cls=Command)
@click.argument("code", required=False, shell_complete=options.complete_codes)
def explain_command(code: str | None) -> None:
    """Explain a code of lint by examples; without CODE, list all codes."""
    from demitasse.core.text import suggestion
    from demitasse.lint.examples import EXAMPLES
    from demitasse.lint.findings import CODES

    if code is None:
        show(table(("code", "meaning"), [(name, meaning.text) for name, meaning in CODES.items()]))
        return
    name = next((known for known in CODES if known == code.strip("[]")), None)
    if name is None:
        fail(f"unknown code {code!r}{suggestion(code, CODES)}; `demitasse explain` lists all codes")
    parts = [f"{name}: {CODES[name].text}", f"What to do: {CODES[name].remedy}"]
    for example in EXAMPLES[name]:
        parts.append(f"Found ({example.severity}):\n\n{_indented(example.wrong)}")
        if example.right:
            parts.append(f"Not found:\n\n{_indented(example.right)}")
    show("\n\n".join(parts))


def _indented(text: str) -> str:
    return indent(text.strip("\n"), "  ")


@click.command(cls=Command)
@click.argument("net", metavar="NET", type=FILE)
@click.argument("out", metavar="OUTPUT", type=FILE)
@option(
    "--rankdir", "Direction of the drawing: left to right, top to bottom, ...",
    click.Choice(["LR", "RL", "TB", "BT"], case_sensitive=False), "LR",
)  # fmt: skip
@option(
    "--phase", "Draw the layers of this phase.",
    click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False), "ALL",
)  # fmt: skip
@switch("--display_lrm", "Also draw the learning-rate factors.")
def draw_net_command(net: Path, out: Path, rankdir: str, phase: str, display_lrm: bool) -> None:
    """Draw a net.

    The extension of OUTPUT sets the format: .svg needs nothing else, .pdf and images such as .png
    need Pillow, .dot is text for Graphviz.
    """
    from demitasse.compat.pycaffe.draw import draw_net_to_file
    from demitasse.io.proto import Phase, read_net_params

    chosen = None if phase == "ALL" else Phase.Value(phase)
    draw_net_to_file(read_net_params(net), str(out), rankdir, chosen, display_lrm)
    echo(f"Drew {net} to {out}")
