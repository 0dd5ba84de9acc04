"""``demitasse weights export`` and ``import`` of state_dicts, by a map of names."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import resnets
from click.testing import CliRunner
from expect_error import expect_error
from needs import needs

from demitasse import Net
from demitasse.cli.root import cli
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.weights.safetensors import read_safetensors, write_safetensors
from demitasse.io.weights.state_dict import read_state_dict

NET = """
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 5 transpose: true weight_filler { type: "xavier" } } }
"""

MAP = """\
# layer = module
conv = features.0
norm + scale = features.1   # one in PyTorch
fc = classifier
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with net.prototxt, net.caffemodel and names.txt."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    Path("names.txt").write_text(MAP.removeprefix("# layer = module\n"), "utf-8-sig")
    made = Net("net.prototxt", "TEST", device="numpy")
    random = np.random.default_rng(1)
    for blobs in made.params.values():
        for blob in blobs:
            blob.mutable_cpu_data()[...] = random.random(blob.shape, np.float32) + 0.5
    made.params["norm"][2].mutable_cpu_data()[...] = 4
    made.save("net.caffemodel")
    return made


def run(args, **options):
    result = CliRunner().invoke(cli, args.split(), **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_map_names_the_modules(folder):
    result = run("weights export net.caffemodel out.safetensors --map names.txt")

    assert result.exit_code == 0, result.output
    found = read_safetensors(Path("out.safetensors"))
    assert list(found) == [
        "features.0.weight", "features.0.bias", "features.1.running_mean",
        "features.1.running_var", "features.1.weight", "features.1.bias", "classifier.weight",
        "classifier.bias",
    ]  # fmt: skip
    assert np.array_equal(found["features.1.running_mean"], folder.params["norm"][0].data / 4)
    assert np.array_equal(found["features.1.weight"], folder.params["scale"][0].data)
    assert np.array_equal(found["classifier.weight"], folder.params["fc"][0].data.T)


@pytest.mark.parametrize("given", ["--map names.txt", "--yes"])
def test_what_was_exported_comes_back(given, folder):
    run("weights export net.caffemodel out.safetensors --map names.txt")

    result = run(f"weights import out.safetensors net.prototxt back.caffemodel {given}")

    assert result.exit_code == 0, result.output
    x = np.random.default_rng(0).random((2, 3, 6, 6), np.float32)
    back = Net("net.prototxt", "TEST", device="numpy", weights="back.caffemodel")
    want, found = (one.predict({"data": x})["fc"] for one in (folder, back))
    assert np.allclose(found, want, rtol=1e-6)
    assert back.params["norm"][2].data == 1


def test_what_is_found_by_order_is_confirmed_first_and_can_be_kept(folder):
    run("weights export net.caffemodel out.safetensors --map names.txt")
    command = "weights import out.safetensors net.prototxt back.caffemodel --save-map found.txt"

    refused = run(command, input="n\n")
    taken = run(command, input="y\n")

    assert refused.exit_code != 0
    assert "norm + scale  features.1" in refused.stdout
    assert taken.exit_code == 0
    assert Path("found.txt").read_text() == (
        "conv = features.0\nnorm + scale = features.1\nfc = classifier\n"
    )


def test_values_that_another_line_would_overwrite_are_refused(folder):
    run("weights export net.caffemodel out.safetensors --map names.txt")
    arrays = read_safetensors(Path("out.safetensors"))
    arrays |= {name.replace("classifier", "other"): 2 * arrays[name]
               for name in ("classifier.weight", "classifier.bias")}  # fmt: skip
    write_safetensors(Path("two.safetensors"), arrays)
    Path("one.txt").write_text(MAP + "conv = classifier")
    Path("two.txt").write_text(MAP + "fc = other")

    lost = run("weights export net.caffemodel bad.safetensors --map one.txt")
    unclear = run("weights import two.safetensors net.prototxt bad.caffemodel --map two.txt")
    same = run("weights export net.caffemodel same.safetensors --map two.txt")

    assert (lost.exit_code, unclear.exit_code, same.exit_code) == (3, 3, 0)
    assert "classifier.weight" in lost.stderr
    assert "'fc'" in unclear.stderr
    assert not list(Path().glob("bad.*"))
    assert run("weights import same.safetensors net.prototxt x.npz --map two.txt").exit_code == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits(dtype, folder):
    run(f"weights export net.caffemodel half.safetensors --map names.txt --dtype {dtype}")

    run("weights import half.safetensors net.prototxt back.caffemodel --map names.txt")

    back = Net("net.prototxt", "TEST", device="numpy", weights="back.caffemodel")
    precision = 2**-11 if dtype == "float16" else 2**-8
    assert np.allclose(back.params["fc"][0].data, folder.params["fc"][0].data, rtol=precision)


def test_bfloat16_is_rounded_to_the_nearest_even_number(tmp_path):
    whole = np.array([1, 1.00390625, 1.01171875, -0.0, np.inf, -np.inf, np.nan, 3.3895e38],
                     np.float32)  # fmt: skip

    write_safetensors(tmp_path / "x.safetensors", {"x": whole}, "pt", "bfloat16")

    found = read_safetensors(tmp_path / "x.safetensors")["x"]
    want = np.array([1, 1, 1.015625, -0.0, np.inf, -np.inf, np.nan, 3.3895314e38], np.float32)
    assert np.array_equal(found, want, equal_nan=True)
    assert np.signbit(found[3])
    content = (tmp_path / "x.safetensors").read_bytes()
    assert len(content) == 8 + int.from_bytes(content[:8], "little") + 2 * whole.size


def altered(**changes):
    """Write bad.safetensors: what was exported, but some tensors otherwise."""
    run("weights export net.caffemodel out.safetensors --map names.txt")
    arrays = read_safetensors(Path("out.safetensors"))
    for name, array in changes.items():
        key = name.replace("__", ".")
        arrays.pop(key, None)
        if array is not None:
            arrays[key] = array
    write_safetensors(Path("bad.safetensors"), arrays)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classifier__weight": np.zeros((7, 9), np.float32)},
         ["fc (InnerProduct)", "7 9 (63)", "5 64 (320)"]),
        ({"features__1__running_var": None}, ["running_var"]),
        ({"features__0__more": np.zeros(3, np.float32)}, ["more"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_and_nothing_is_written(changes, words, folder):
    altered(**changes)

    result = run("weights import bad.safetensors net.prototxt back.caffemodel --map names.txt")

    assert result.exit_code != 0
    assert all(word in " ".join(result.stderr.split()) for word in words)
    assert not Path("back.caffemodel").exists()


def test_a_module_that_there_is_not_and_the_nearest_name(folder):
    run("weights export net.caffemodel out.safetensors --map names.txt")
    Path("names.txt").write_text(MAP.replace("= classifier", "= clasifier"))

    result = run("weights import out.safetensors net.prototxt back.caffemodel --map names.txt")

    assert result.exit_code != 0
    assert all(name in result.stderr for name in ("'clasifier'", "fc", "'classifier'"))


def test_faults_of_a_map_are_all_named(folder):
    Path("names.txt").write_text('konv = a\nnorm scale = b\nfc = c\n"block\\conv" = d\nfc = "e\n')

    result = run("weights export net.caffemodel out.safetensors --map names.txt")

    assert result.exit_code != 0
    assert "'konv'" in result.stderr
    assert "'conv'" in result.stderr
    assert "LAYER = MODULE" in result.stderr
    assert "line 4" in result.stderr
    assert "line 5" in result.stderr
    assert not Path("out.safetensors").exists()


def test_by_order_shapes_that_nobody_has_are_named(folder):
    altered(classifier__weight=np.zeros((7, 9), np.float32))

    result = run("weights import bad.safetensors net.prototxt back.caffemodel --yes")

    assert result.exit_code != 0
    assert "fc" in result.stderr
    assert "5 64 (320)" in result.stderr
    assert not Path("back.caffemodel").exists()


# -- with PyTorch ------------------------------------------------------------------------------


@pytest.fixture
def torch():
    """PyTorch."""
    return pytest.importorskip("torch", reason="needs torch: nox -s frameworks")


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_residual_net_of_pytorch_computes_the_same_here(ending, torch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs = resnets.module(torch)
    if ending == "pt":
        torch.save({"state_dict": theirs.state_dict()}, "net.pt")
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(theirs.state_dict(), "net.safetensors")
    Path("net.prototxt").write_text(resnets.prototxt())

    result = run(f"weights import net.{ending} net.prototxt net.caffemodel --yes")

    assert result.exit_code == 0, result.output
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    with torch.no_grad():
        want = theirs(torch.from_numpy(x)).numpy()
    ours = Net("net.prototxt", "TEST", device="numpy", weights="net.caffemodel")
    assert np.abs(ours.predict({"data": x})["fc"] - want).max() < 1e-5 * np.abs(want).max()


def test_a_file_of_pytorch_comes_back(torch, folder):
    run("weights export net.caffemodel net.pt")

    result = run("weights import net.pt net.prototxt back.caffemodel --yes")

    assert result.exit_code == 0, result.output
    assert torch.load("net.pt", weights_only=True)["conv.weight"].shape == (4, 3, 3, 3)


def test_bfloat16_is_what_pytorch_makes_of_it(torch, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, np.uint32)
    whole = bits.view(np.float32)
    whole = whole[np.isfinite(whole)]

    write_safetensors(tmp_path / "x.safetensors", {"x": whole}, "pt", "bfloat16")

    found = safetensors.load_file(tmp_path / "x.safetensors")["x"]
    assert torch.equal(found, torch.from_numpy(whole).to(torch.bfloat16))


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_that_would_run_code_is_refused(whole, torch, folder):
    torch.save(torch.nn.Conv2d(1, 4, 3) if whole else {"state_dict": Path}, "bad.pt")

    result = run("weights import bad.pt net.prototxt back.caffemodel --yes")

    assert result.exit_code != 0
    assert "holds more than tensors" in result.stderr
    assert "torch.save(net.state_dict(), ...)" in result.stderr
    assert "weights_only" not in result.stderr
    assert not Path("back.caffemodel").exists()


def test_a_tensor_that_numpy_cannot_hold_is_named(torch, tmp_path):
    torch.save({"conv.weight": torch.eye(3).to_sparse()}, tmp_path / "net.pt")

    with expect_error(WeightsError, ErrorCode.DTYPE_MISMATCH, param="conv.weight"):
        read_state_dict(tmp_path / "net.pt")


@pytest.mark.parametrize("way", ["repeated", "shared", "compressed"])
def test_memory_is_bounded_by_the_size_of_a_file_of_pytorch(way, torch, tmp_path):
    path, count = tmp_path / "net.pt", 1 << 25
    one = torch.zeros(1 if way == "repeated" else count // 256, dtype=torch.float16)
    tensors = {f"{i}.weight": one.expand(count // 256) for i in range(256)}
    torch.save({"a.weight": torch.zeros(count)} if way == "compressed" else tensors, path)
    if way == "compressed":
        with zipfile.ZipFile(path) as old:
            members = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for name, content in members.items():
                new.writestr(name, content)

    with expect_error(WeightsError, mentions="50 times as many"):
        read_state_dict(path)


@needs("named pipes")
def test_devices_are_no_maps_of_names(folder):
    result = run(f"weights export net.caffemodel out.safetensors --map {os.devnull}")

    assert "expected a regular file" in result.stderr
    assert not Path("out.safetensors").exists()


@needs("named pipes", "links")
def test_devices_are_no_files_of_pytorch(torch, tmp_path):
    (tmp_path / "net.pt").symlink_to(os.devnull)

    with expect_error(WeightsError, ErrorCode.UNREADABLE, mentions="expected a regular file"):
        read_state_dict(tmp_path / "net.pt")


def test_an_lstm_has_its_gates_in_pytorchs_order(torch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text("""
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 2 dim: 3 } } }
    layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 4 dim: 2 } } }
    layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "y"
      recurrent_param { num_output: 5 } }
    """)
    theirs = torch.nn.LSTM(3, 5)
    torch.save({f"lstm.{name}": one for name, one in theirs.state_dict().items()}, "net.pt")

    run("weights import net.pt net.prototxt net.caffemodel --yes")

    x = np.random.default_rng(0).standard_normal((4, 2, 3), np.float32)
    cont = np.ones((4, 2), np.float32)
    cont[0] = 0
    ours = Net("net.prototxt", "TEST", device="numpy", weights="net.caffemodel")
    with torch.no_grad():
        want = theirs(torch.from_numpy(x))[0].numpy()
    assert np.allclose(ours.predict({"x": x, "cont": cont})["y"], want, atol=1e-5)
