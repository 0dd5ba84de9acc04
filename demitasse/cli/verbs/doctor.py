"""doctor: what is installed, which devices are there, where settings come from."""

from __future__ import annotations

from typing import Any

import click

from demitasse.cli.exits import FAILED
from demitasse.cli.options import json_option
from demitasse.cli.output import print_json, show, table
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Tell what is installed, found, set, and amiss.

    Versions, devices and why others are missing, the BLAS in use, and where each setting comes
    from. Exits with 1 when something is amiss.
    """
    from demitasse.cli.diagnosis import examine

    found = examine()
    if as_json:
        print_json(found)
    else:
        show(_text(found))
    if found["problems"]:
        ctx.exit(FAILED)


def _cores(found: dict[str, Any]) -> str:
    """Say how many cores are used, why not all, and how many programs wanted one of late."""
    text = f"{found['cores']} of {found['cpus']}"
    if found["quota"] is not None:
        text += f" (a quota of {found['quota']:g})"
    return text if found["load"] is None else f"{text}, load {found['load']:.1f}"


def _text(found: dict[str, Any]) -> str:
    from demitasse.cli.diagnosis import EXTRAS
    from demitasse.core.config import TABLE
    from demitasse.core.memory_info import MemoryInfo

    general = [
        ("demitasse", f"{found['demitasse']} ({found['installed_at']})"),
        ("Python", found["python"]),
        ("platform", found["platform"]),
        ("cores", _cores(found)),
    ]
    libraries = []
    for name, version in found["libraries"].items():
        extra = f"  (pip install 'demitasse[{EXTRAS[name]}]')" if name in EXTRAS else ""
        libraries.append((name, version or f"not installed{extra}"))
    blas = found["blas"]
    general.append(
        ("BLAS of numpy", f"{blas['name']} {blas['version']}, kernels: {blas['kernel'] or '?'}")
    )
    onednn = found["onednn"]
    general.append(
        (
            "oneDNN",
            "{version} ({threading} threads, {instruction_set}) from {path}".format(**onednn)
            if onednn["loaded"]
            else f"not used: {onednn['reason']}",
        )
    )
    if onednn["loaded"]:
        teams = f"OpenMP's: {onednn['openmp']}" if onednn["openmp"] else "ours"
        general.append(("threads of cpu", teams))
    kernels = found["kernels"]
    general.append(
        (
            "kernels made here",
            f"for {kernels['processor']}, kept in {kernels['folder'] or 'no folder'}"
            if kernels["ready"]
            else f"none: {kernels['reason']}",
        )
    )
    cudnn = found["cudnn"]
    general.append(
        (
            "cuDNN",
            "{version}, by its frontend {frontend}".format(**cudnn)
            if cudnn["loaded"]
            else f"not used: {cudnn['reason']}",
        )
    )
    general.append(("MPI", found["mpi"] or "none (pip install 'demitasse[mpi]')"))
    graph = found["settings"]["cuda_graphs"]["value"]
    often = "never" if graph == "off" else "where nothing stands in the way"
    general.append(("GPU passes as one launch", f"{often} (setting cuda_graphs: {graph})"))
    devices = [
        (name, ", ".join(there) if isinstance(there, list) else f"none: {there}")
        for name, there in found["devices"].items()
    ]
    memory = [(name, str(MemoryInfo(**about))) for name, about in found["memory"].items()]
    settings = [
        (name, str(entry["value"]), entry["where"], TABLE[name].variable)
        for name, entry in found["settings"].items()
    ]
    parts = [
        table(("", ""), general).lstrip("\n"),
        table(("library", "version"), libraries),
        table(("backend", "devices"), devices),
        table(("device", "memory"), memory),
        table(("setting", "value", "from", "environment"), settings),
    ]
    parts += [f"problem: {problem}" for problem in found["problems"]] or ["no problems found"]
    return "\n\n".join(parts)
