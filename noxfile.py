"""Sessions for working on Demitasse: `nox` runs the usual ones, `nox -l` lists them all."""

import hashlib
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "types", "imports", "tests", "docs", "build"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True  # a Python that was not tried has not passed

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
REFERENCE_DATA = ROOT.parent / "shared" / "data"
# Left in the environment, these choose a slower BLAS kernel than the processor has.
PLAIN_BLAS: dict[str, str | None] = {"OPENBLAS_CORETYPE": None, "OPENBLAS_L2_SIZE": None}
CONTRACTED = "-mfma -ffp-contract=fast -DFLUSH_DENORMALS"
"""Flags of the stand-in's kernels: NVRTC contracts multiplications and additions, and cupy has it
flush denormal numbers to 0."""

# The frontend's dependencies are compilers for newer GPUs, of which convolutions need none.
CUDNN = ["nvidia-cudnn-frontend>=1.32,<2", "nvidia-cudnn-cu13>=9.28,<10", "nvidia-cublas>=13,<14"]
TORCH_FOR_CPU = (
    "torch==2.13.0+cpu", "--extra-index-url", "https://download.pytorch.org/whl/cpu",
)  # fmt: skip
SYSTEMS = (
    "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin",
    "x86_64-apple-darwin", "x86_64-pc-windows-msvc", "aarch64-pc-windows-msvc",
)  # fmt: skip
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
BACKENDS = ["numpy", "readonly", "strict:device1", "cpu"]
WITH_PAIRS = ("-m", "not slow and not exhaustive")
"""Options of pytest: all pairs of values in tests of kernels, too."""


def install(session: nox.Session, *groups: str, extras: str = "all") -> None:
    """Install the package, editable, with extras and dependency groups, by one call of pip."""
    lines = [line for group in groups for line in nox.project.dependency_groups(PROJECT, group)]
    package = f".[{extras}]" if extras else "."
    session.install("--no-compile", "-e", package, *lines)  # Python compiles what is imported


def pytest(session: nox.Session, *args: str, **env: str) -> None:
    """Run pytest with the recorded data where it lies beside the checkout."""
    if REFERENCE_DATA.is_dir():
        env.setdefault("DEMITASSE_REFERENCE_DATA", str(REFERENCE_DATA))
    session.run("pytest", *args, *session.posargs, env={**env, **PLAIN_BLAS})


def _record(device: str) -> str:
    """Return the option that compares the passed layer types with those of the documentation."""
    return f"--record=docs/conformance/{device.partition(':')[0]}.json"


@nox.session(default=False)
def checks(session: nox.Session) -> None:
    """Run lint, types, imports, proto, docs and build in one environment, as CI does."""
    install(session, "lint", "types", "imports", "proto", "docs", "build", "test")
    for check in (_lint, _imports, _proto):
        check(session)
    with ThreadPoolExecutor() as pool:  # documentation and wheel need one core each
        for done in [pool.submit(check, session) for check in (_types, _docs, _build)]:
            done.result()


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    _lint(session)


def _lint(session: nox.Session) -> None:
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly; conformance tests use pytest's types."""
    install(session, "types", "test")
    _types(session)


def _types(session: nox.Session) -> None:
    session.run("mypy", f"--num-workers={os.cpu_count()}")


@nox.session
def imports(session: nox.Session) -> None:
    """Check that the packages import one way, and array libraries only where allowed."""
    install(session, "imports", extras="")
    _imports(session)


def _imports(session: nox.Session) -> None:
    session.run("lint-imports")


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def tests(session: nox.Session, backend: str) -> None:
    """Run all cases on one backend; `tests(cpu)` also runs the tests that ask for no backend."""
    install(session, "test", *(["kernels"] if backend == "cpu" else []))
    chosen = "not slow" if backend == "cpu" else "backend and not slow"
    pytest(session, "-m", chosen, f"--backends={backend}")
    record = () if backend == "readonly" else (_record(backend),)
    session.run("python", "-m", "demitasse.testing.conformance", f"--device={backend}", *record)


@nox.session
def pairs(session: nox.Session) -> None:
    """Run the cases of kernels in which two values meet (minutes; after a change of a kernel)."""
    install(session, "test")
    pytest(session, "-m", "pairs and not slow", OMP_NUM_THREADS="1")


@nox.session
def exhaustive(session: nox.Session) -> None:
    """Run the cases that `pytest` leaves out, because others like them run every time."""
    install(session, "test")
    pytest(session, "-m", "exhaustive and not slow", OMP_NUM_THREADS="1")


@nox.session
def tests_torch(session: nox.Session) -> None:
    """Run the conformance tests, and all tests of layers and nets, on PyTorch's CPU device."""
    install(session, "test", extras="all,torch")
    device = "torch:cpu"
    conformance = ("python", "-m", "demitasse.testing.conformance")
    session.run(*conformance, f"--device={device}", _record(device))
    rooms = ("core", "layers", "net", "training", "testing")
    pytest(session, *(f"tests/{room}" for room in rooms), "-m", "backend and not slow",
           f"--backends={device}")  # fmt: skip
    pytest(session, "tests/backends/test_torch.py")


def _package(session: nox.Session, name: str, device: str, *, extra: str = "", **env: str) -> None:
    """Run the conformance tests, recorded layers, nets and solvers, and a package's own tests."""
    install(session, "test")
    folder = f"packages/demitasse-{name}"
    session.install("-e", f"{folder}[{extra}]" if extra else folder)
    conformance = ("python", "-m", "demitasse.testing.conformance")
    session.run(*conformance, f"--device={device}", _record(device), env=env)
    for file in ("core/test_deferred_contents", "layers/test_recorded_cases",
                 "net/test_recorded_nets", "net/test_several_nets",
                 "training/test_solver_goldens", "training/test_update_rules"):  # fmt: skip
        pytest(session, f"tests/{file}.py", "-m", "backend and not slow", f"--backends={device}",
               "-n0", **env)  # fmt: skip
    pytest(session, f"{folder}/tests", "-n0", f"--rootdir={folder}")


@nox.session(default=False)
def jax(session: nox.Session) -> None:
    """Test packages/demitasse-jax on JAX's CPU device (half an hour; later runs, a quarter)."""
    # compilations take most of the time; the path is absolute since tests change folders
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(session.cache_dir.resolve() / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    _package(session, "jax", "jax:cpu", JAX_ENABLE_X64="1", **cache)


@nox.session(default=False)
def mlx(session: nox.Session) -> None:
    """Test packages/demitasse-mlx on MLX's CPU device (minutes)."""
    _package(session, "mlx", "mlx:cpu")


@nox.session(default=False)
def dpnp(session: nox.Session) -> None:
    """Test packages/demitasse-dpnp on SYCL's CPU device (minutes; gigabytes to install)."""
    _package(session, "dpnp", "dpnp:cpu", extra="cpu")


@nox.session
def mpi(session: nox.Session) -> None:
    """Train by several processes over MPI: equal bits, kills, hangs (DEMITASSE_KILLS=50)."""
    install(session, "test", extras="all,mpi")
    page = "tests/project/test_docs.py::test_processes_train_as_root_on_any_number_of_cores"
    pytest(session, "tests/training/distributed", page, "-n0", "-m", "slow or not slow", "-rs")


@nox.session
def frameworks(session: nox.Session) -> None:
    """Run the tests that hold nets against ONNX Runtime and PyTorch, the server against Triton."""
    session.install(*TORCH_FOR_CPU)  # PyPI's own brings gigabytes of CUDA
    install(session, "test", "frameworks", extras="all,torch,onnx")
    pages = [f"tests/project/test_{page}_page.py" for page in ("export", "import")]
    pytest(session, "tests/testing/frameworks", "tests/interop/export", "tests/interop/onnx_import",
           "tests/cli/test_state_dicts.py", "tests/cli/test_onnx_models.py",
           "tests/cli/test_bench.py", "tests/inference/serving/test_public_client.py", *pages,
           "-n0", "-rs")  # fmt: skip


@nox.session(python=list(PYTHONS))
def pythons(session: nox.Session) -> None:
    """Run the tests of one device and of none on every supported Python; each must be there."""
    install(session, "test")
    pytest(session, "--backends=cpu")


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure which branches the tests take, and list the files where most are not."""
    install(session, "test", "coverage")
    session.run("coverage", "erase")
    # pytest-cov must hear of the processes before conftest.py would choose their number
    spread = ("-n", "auto", "--dist", "worksteal")
    cov = ("--cov", "--cov-report=")
    pytest(session, "--backends=numpy,cpu", *spread, *cov, OMP_NUM_THREADS="1")
    session.run("coverage", "report", "--skip-covered", "--sort=cover")


@nox.session
def mutants(session: nox.Session) -> None:
    """Break every lowering of every backend, and see that the tests notice (`-- --from N`)."""
    install(session, "test")
    environment = {**PLAIN_BLAS, "OMP_NUM_THREADS": "1"}
    session.run("python", "tests/support/mutants.py", *session.posargs, env=environment)


@nox.session
def lowest(session: nox.Session) -> None:
    """Run the tests with the lowest versions of all libraries that pyproject.toml allows."""
    project = PROJECT["project"]
    extras = [
        line
        for name in ("image", "hdf5", "examples", "plot")
        for line in project["optional-dependencies"][name]
    ]
    lines = [*project["dependencies"], *extras, *nox.project.dependency_groups(PROJECT, "test")]
    floors = Path(session.create_tmp()) / "lowest.txt"
    floors.write_text("\n".join(line.replace(">=", "==", 1) for line in lines))
    session.install(
        "-e", ".[all]", *nox.project.dependency_groups(PROJECT, "test"), "-c", str(floors)
    )
    pytest(session, "--backends=cpu")


@nox.session
def platforms(session: nox.Session) -> None:
    """See that the package and its tests are to be had as wheels, on every system and Python."""
    session.install("uv")
    for system in SYSTEMS:
        for python in PYTHONS:
            session.run(
                "uv", "pip", "compile", "--quiet", "--extra=all", "--group=test",
                "--only-binary=:all:", f"--python-platform={system}",
                f"--python-version={python}",
                f"--output-file={session.create_tmp()}/{system}-{python}.txt", "pyproject.toml",
            )  # fmt: skip


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/, warnings being errors."""
    install(session, "docs")
    _docs(session)


def _docs(session: nox.Session) -> None:
    session.run("mkdocs", "build", "--strict")


@nox.session
def build(session: nox.Session) -> None:
    """Build wheel and sdist, check what is in them, and try the wheel in a fresh environment."""
    install(session, "test", "build")
    _build(session)


def _build(session: nox.Session) -> None:
    pytest(session, "tests/project/test_wheel.py", "-m", "slow")


@nox.session(python=list(PYTHONS))
def wheels(session: nox.Session) -> None:
    """Build the wheel, and train the example with it in an environment that has nothing else."""
    dist, run = Path(session.create_tmp(), "dist"), Path(session.create_tmp(), "run")
    session.install("build")
    session.run("python", "-m", "build", "--outdir", str(dist))
    session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", "build")
    [wheel] = dist.glob("*.whl")
    run.mkdir(exist_ok=True)
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.install(f"{wheel}[examples]")
    session.chdir(run)  # where the sources are not
    session.run("demitasse", "doctor")
    session.run("demitasse", "example", "digits")


@nox.session
def stranger(session: nox.Session) -> None:
    """Install the wheel as a newcomer does, try the first commands, weigh each extra (minutes)."""
    session.install(*nox.project.dependency_groups(PROJECT, "build"))
    session.run("python", "packaging/stranger.py", *session.posargs)


@nox.session
def packaging(session: nox.Session) -> None:
    """Look at images, conda's recipe, workflows and scripts for batch systems."""
    session.install(*nox.project.dependency_groups(PROJECT, "packaging"))
    cluster = ROOT / "examples" / "cluster"
    images = [*sorted(ROOT.glob("packaging/docker/*.Dockerfile")), cluster / "Dockerfile"]
    session.run("hadolint", *map(str, images))
    batch = [str(path) for path in sorted(cluster.glob("*.sbatch"))]
    session.run("shellcheck", "--severity=warning", *batch)
    known = [str(path) for path in sorted(cluster.glob("*.yaml")) if "mpijob" not in path.name]
    session.run("kubernetes-validate", "--strict", *known)
    session.run("check-jsonschema", "--builtin-schema=vendor.citation-file-format", "CITATION.cff")
    workflows = [str(path) for path in sorted(ROOT.glob(".github/workflows/*.yml"))]
    session.run("check-jsonschema", "--builtin-schema=vendor.github-workflows", *workflows)
    session.run("zizmor", "--offline", *workflows)
    recipe = ROOT / "packaging" / "conda" / "recipe.yaml"
    code = "import sys, rattler_build as r; "
    code += "print(r.Stage0Recipe.from_file(sys.argv[1]).render(r.VariantConfig()))"
    session.run("python", "-c", code, str(recipe))


@nox.session
def tests_gpu(session: nox.Session) -> None:
    """Run the tests on a GPU, which must be there (DEMITASSE_CUDA_EXTRA=cuda12 for CUDA 12)."""
    install(session, "test", extras=f"all,{os.environ.get('DEMITASSE_CUDA_EXTRA', 'cuda13')}")
    chosen = ("-m", "not slow", "--backends=cpu,cuda:0")
    pytest(session, "-n0", *chosen, DEMITASSE_REQUIRE_GPU="1")


@nox.session
def stand_in(session: nox.Session) -> None:
    """Run all tests of devices on a stand-in for cupy and two GPUs (half an hour; needs g++)."""
    install(session, "test")
    contracted = platform.machine() in {"x86_64", "AMD64"}  # multiply-adds, as on a GPU
    for device, flags in (("cuda:0", ""), ("cuda:1", CONTRACTED if contracted else "")):
        chosen = ("-m", "backend and not slow", "--stand-in", f"--backends={device}")
        pytest(session, *chosen, OMP_NUM_THREADS="1", DEMITASSE_KERNEL_FLAGS=flags)
    pytest(session, "tests/benchmark/test_gpu_first_run.py", "-m", "slow or not slow")


@nox.session
def contract(session: nox.Session) -> None:
    """Hold what we call of cupy, and the stand-in for it, against cupy itself; needs no GPU."""
    install(session, extras=os.environ.get("DEMITASSE_CUDA_EXTRA", "cuda13"))
    session.run("python", "tests/support/gpu/contract.py")


@nox.session
def cudnn(session: nox.Session) -> None:
    """Have cuDNN itself plan convolutions, for a GPU that need not be there (1 GB to install)."""
    install(session, "test")
    session.install("--no-deps", *CUDNN)
    tests = ("tests/backends/test_cudnn_wheel.py", "tests/backends/test_cublas_wheel.py")
    pytest(session, *tests, "-n0")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Run the property tests with thousands of new examples, and damage a million files (an hour).

    Each reader gets ten thousand at least; arguments go to the script (`-- --seed 7 --part 0 2`).
    """
    install(session, "test")
    pytest(session, "-m", "hypothesis", "--hypothesis-profile=fuzz")
    run = "tests/fuzz/run.py"
    session.run("python", run, "--count=1000000", "--least=10000", *session.posargs)
    for what, count in (("random nets", 5000), ("random solvers", 5000), ("wrong layers", 50_000)):
        session.run("python", run, f"--only={what}", f"--count={count}", *session.posargs)


@nox.session
def nets(session: nox.Session) -> None:
    """Run 2,000 generated nets and all pairs of layers on two instruction sets (`-- --jobs 4`)."""
    install(session, "test")
    run = "tests/fuzz/nets.py"
    for most in (None, "AVX2"):
        environment = {**PLAIN_BLAS, "ONEDNN_MAX_CPU_ISA": most}
        session.run("python", run, "--count=2000", *session.posargs, env=environment)
        session.run("python", run, "--pairs", *session.posargs, env=environment)


@nox.session
def instruction_sets(session: nox.Session) -> None:
    """Run the recorded cases with vectors of older processors, and without kernels."""
    install(session, "test")
    pytest(session, "tests/backends/test_cpu_instruction_sets.py", "-m", "slow or not slow")


ARM64_PARTS = {
    "kernels": ("tests/backends/kernels",),
    "steps": ("tests/backends/test_steps_equal_portable.py", "tests/plan/test_replay.py"),
    "layers": ("tests/layers/test_recorded_cases.py",),
    "nets": ("tests/net/test_in_place.py", "tests/net/test_nonfinite_values.py",
             "tests/net/test_recorded_nets.py"),
    "models": ("tests/net/test_classified_images.py", "tests/net/test_recorded_nonfinite.py"),
    "solvers": ("tests/training/test_solver_goldens.py", "tests/training/test_update_rules.py"),
}  # fmt: skip
"""Tests that run in emulation, a tenth as fast as on the machine."""

ARM64_PYTHON = """#!/bin/sh
exec qemu-aarch64-static -cpu neoverse-n1 -L {root} -0 "$0" {root}/usr/bin/python3 "$@"
"""
"""Python of the root, as an executable of this machine, so that tests can start it. With the
emulator's default processor, OpenBLAS multiplies transposed matrices wrongly (QEMU 7.2)."""


@nox.session
def aarch64(session: nox.Session) -> None:
    """Run tests of kernels, layers, nets and solvers in emulated aarch64 (an hour, if busy).

    Debian's packages `mmdebstrap` and `qemu-user-static` are needed. `-- kernels nets` runs parts;
    each keeps the results of its tests, so that a part that was stopped continues, and one with
    failures runs those again. All other arguments go to pytest: `-- -n1` runs all parts in one
    process, `-- tests/io` other tests.
    """
    python = _arm64_python(session)
    parts = [part for part in ARM64_PARTS if part in session.posargs]
    arguments = [one for one in session.posargs if one not in ARM64_PARTS]
    environment = {"KERNEL_TEST_WIDTHS": "4", "PYTHONDONTWRITEBYTECODE": "1", **PLAIN_BLAS}
    if REFERENCE_DATA.is_dir():
        environment["DEMITASSE_REFERENCE_DATA"] = str(REFERENCE_DATA)
    command = (
        str(python), "-m", "pytest", "-n", str(os.cpu_count()), "--backends=cpu",
        *WITH_PAIRS,
        "-k", "not host and not cuda",  # the simulated GPU needs a C++ compiler for aarch64
    )  # fmt: skip
    if not parts and any(not one.startswith("-") for one in arguments):  # other tests
        session.run(*command, *arguments, env=environment, external=True)
        return
    # other sources have other results
    commands = ("git", "rev-parse", "HEAD"), ("git", "diff", "HEAD")
    sources = "".join(str(session.run(*one, external=True, silent=True)) for one in commands)
    name = hashlib.sha256(sources.encode()).hexdigest()[:12]
    results = Path(session.cache_dir, "aarch64-results", name).resolve()
    failed = []
    for part in parts or ARM64_PARTS:
        session.log(f"{part}: results in {results / part}.jsonl, delete it to run all tests again")
        if part == "kernels":  # this machine writes the digests that emulation compares
            environment["KERNEL_DIGESTS"] = str(results / "digests")
            install(session, "test")
            bits = "tests/backends/kernels/test_equal_bits.py"
            wide = {**environment, "KERNEL_TEST_WIDTHS": "4,8,16"}
            session.run("pytest", "-q", bits, *WITH_PAIRS, env=wide)
        environment["KEPT_RESULTS"] = f"{results / part}.jsonl"
        environment["PYTHONPATH"] = "tests/support"
        try:
            session.run(
                *command, "-p", "kept_results", *ARM64_PARTS[part], *arguments,
                env=environment, external=True,
            )  # fmt: skip
        except nox.command.CommandFailed:
            failed.append(part)
    if failed:
        session.error(f"tests of {', '.join(failed)} failed")


def _arm64_python(session: nox.Session) -> Path:
    """Return an emulated Python with the dependencies, in a root that is made once."""
    root = Path(session.cache_dir, "aarch64").resolve()
    if not root.exists():
        session.run(
            "mmdebstrap", "--variant=extract", "--architectures=arm64",
            "--include=base-files,python3,libstdc++6", "trixie", str(root), external=True,
        )  # fmt: skip
    version = (root / "usr/bin/python3").readlink().name.removeprefix("python")
    site = root / f"usr/local/lib/python{version}/dist-packages"
    session.install("uv")
    session.run(
        "uv", "pip", "install", "--quiet", f"--target={site}", f"--python-version={version}",
        "--python-platform=aarch64-unknown-linux-gnu", "--only-binary=:all:",
        "--no-binary=demitasse", "--group=test", ".[image,hdf5]",
    )  # fmt: skip
    python = root / "usr/bin/python-emulated"
    python.write_text(ARM64_PYTHON.format(root=root))
    python.chmod(0o755)
    return python


@nox.session
def targets(session: nox.Session) -> None:
    """Compile and link all kernels for Windows and macOS, on x86-64 and aarch64 (ten minutes)."""
    install(session, "test")
    for architecture, widths in (("aarch64", "4"), ("x86_64", "8,16")):
        pytest(session, "tests/backends/kernels", *WITH_PAIRS, "-n0",
               f"--targets={architecture}",
               "--deselect=tests/backends/kernels/test_compiler.py",
               KERNEL_TEST_WIDTHS=widths)  # fmt: skip


@nox.session
def guard(session: nox.Session) -> None:
    """Run all kernels on memory against inaccessible pages, at every width of vectors."""
    install(session, "test")
    for side in ("behind", "before"):
        pytest(session, "tests/backends/kernels", *WITH_PAIRS, f"--guard={side}")


@nox.session
def bench(session: nox.Session) -> None:
    """Time our own layers, nets, updates and input (arguments go to pytest-benchmark)."""
    install(session, "test")
    pytest(session, "bench", "--benchmark-enable", "--benchmark-autosave")


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Measure beside PyTorch, ONNX Runtime, OpenVINO and OpenCV (an hour; takes arguments)."""
    install(session, "peers")
    session.run("python", "bench/compare_peers.py", *session.posargs, env=PLAIN_BLAS)


@nox.session
def bench_gpu(session: nox.Session) -> None:
    """Find out and measure everything on a GPU (arguments go to the script)."""
    install(session, extras=f"all,{os.environ.get('DEMITASSE_CUDA_EXTRA', 'cuda13')}")
    session.run("python", "bench/gpu_first_run.py", *session.posargs, env=PLAIN_BLAS)


@nox.session
def survive(session: nox.Session) -> None:
    """Kill training fifty times on each device, and see that it goes on exactly (minutes)."""
    install(session, "test")
    pytest(session, "tests/training/checkpoint/test_killed_training.py", "-m", "slow", "-s")


@nox.session
def faults(session: nox.Session) -> None:
    """Make every system call of everything that writes fail, or be the last one (half an hour).

    A writer is one test, and each worker has its own injector: `-- -k lmdb` runs a part.
    """
    install(session, "test")
    pytest(session, "tests/faults", "-nauto", "-m", "slow", "-s", OMP_NUM_THREADS="1")


@nox.session
def interrupts(session: nox.Session) -> None:
    """Raise exceptions at many lines of passes and updates, and say how often (half an hour)."""
    install(session, "test")
    files = ("tests/net/test_interrupted_pass.py", "tests/training/test_exceptions.py")
    pytest(session, *files, "-nauto", "-s", DEMITASSE_INTERRUPTIONS="100", OMP_NUM_THREADS="1")


@nox.session
def soak(session: nox.Session) -> None:
    """Train for long from every source of data and see that nothing grows (`-- --minutes N`)."""
    install(session, "test")
    session.run("python", "tests/soak/run.py", *session.posargs, env=PLAIN_BLAS)


@nox.session
def proto(session: nox.Session) -> None:
    """Compile caffe.proto again and fail if the committed files are not what comes out."""
    install(session, "proto", extras="")
    _proto(session)


def _proto(session: nox.Session) -> None:
    made = Path(session.create_tmp(), "proto")
    made.mkdir(exist_ok=True)
    session.run("python", "packaging/generate_proto.py", str(made))
    for file in sorted(made.iterdir()):
        if file.read_bytes() != (ROOT / "demitasse/io/proto" / file.name).read_bytes():
            session.error(f"{file.name} differs: run python packaging/generate_proto.py and commit")


@nox.session
def catalogue(session: nox.Session) -> None:
    """Train public nets and classify images (minutes; needs the recorded data)."""
    install(session, "test")
    nets = ("tests/net/test_ten_nets.py", "tests/net/test_classified_images.py")
    pytest(session, *nets, "-m", "slow or not slow", "--backends=cpu")


@nox.session
def examples(session: nox.Session) -> None:
    """Run every example on data that needs no download (minutes)."""
    install(session, "test")
    pytest(session, "tests/project/test_examples.py", "-m", "slow or not slow")


@nox.session
def train_mnist(session: nox.Session) -> None:
    """Train LeNet on all of MNIST (minutes; needs the recorded data) and check its accuracy."""
    install(session, "test")
    pytest(session, "tests/project/test_train_mnist.py", "-m", "slow")
