"""Triton's own client takes the server for one of its kind."""

import re
import subprocess
import sys

import numpy as np
import pytest

triton = pytest.importorskip("tritonclient.http", reason="pip install tritonclient[http]")

DATA = np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32)


@pytest.fixture
def client(folder):
    """A client of a server with one model."""
    command = [sys.executable, "-m", "demitasse", "serve", "means", "--port", "0"]
    with subprocess.Popen(
        [*command, "--device", "numpy"], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as server:
        address = re.search(r"http://(\S+?:\d+)", server.stdout.readline())[1]
        with triton.InferenceServerClient(address) as made:
            yield made
        server.terminate()


def test_it_finds_the_server_and_the_model(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("means")
    assert client.is_model_ready("means", "1")
    assert client.get_server_metadata()["name"] == "demitasse"
    assert client.get_model_metadata("means")["inputs"][0]["shape"] == [-1, 3, 4, 4]


def test_it_reads_statistics_configuration_and_index(client):
    tensor = triton.InferInput("data", list(DATA.shape), "FP32")
    tensor.set_data_from_numpy(DATA)
    client.infer("means", [tensor])

    [found] = client.get_inference_statistics("means")["model_stats"]

    assert found["inference_stats"]["success"]["count"] == 1
    assert client.get_inference_statistics()["model_stats"] == [found]
    assert client.get_model_config("means")["max_batch_size"] == 16
    assert client.get_model_repository_index()[0]["state"] == "READY"


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("returned", [True, False])
def test_it_is_answered_in_binary_and_in_json(client, sent, returned):
    tensor = triton.InferInput("data", list(DATA.shape), "FP32")
    tensor.set_data_from_numpy(DATA, binary_data=sent)
    wanted = [triton.InferRequestedOutput("score", binary_data=returned)]

    result = client.infer("means", [tensor], outputs=wanted, request_id="7")

    assert result.get_response()["id"] == "7"
    np.testing.assert_allclose(
        result.as_numpy("score"), DATA.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6
    )


def test_it_reads_texts(client):
    tensor = triton.InferInput("data", list(DATA.shape), "FP32")
    tensor.set_data_from_numpy(DATA)

    result = client.infer("means", [tensor])

    assert b'"label"' in result.as_numpy("answer")[0]


def test_it_is_told_what_is_wrong(client):
    tensor = triton.InferInput("data", [1, 3], "FP32")
    tensor.set_data_from_numpy(DATA[0, :1, 0, :3])

    with pytest.raises(triton.InferenceServerException, match=r"'data'"):
        client.infer("means", [tensor])
