"""Small models in a folder, and applications that serve them."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from model_cards import classifier_card
from serving_client import Client

from demitasse.inference.cards.model_files import find_model
from demitasse.inference.serving.app import App, Limits
from demitasse.inference.serving.batching import Queue
from demitasse.inference.serving.codec import Codecs
from demitasse.inference.serving.metrics import Metrics
from demitasse.inference.serving.model import Model
from demitasse.net import Net

INPUT = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
"""

NET = f"""{INPUT}
layer {{ name: "means" type: "Pooling" bottom: "data" top: "means"
        pooling_param {{ pool: AVE global_pooling: true }} }}
layer {{ name: "score" type: "InnerProduct" bottom: "means" top: "score"
        inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
"""

FIXED = f"""{INPUT}
layer {{ name: "flat" type: "Reshape" bottom: "data" top: "flat"
        reshape_param {{ shape {{ dim: 1 dim: 96 }} }} }}
"""

CARD = classifier_card("net", ["blue", "green", "red"], "bgr")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model that has a card, and one that has none."""
    return with_models(tmp_path)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory) -> Path:
    """The same folder for all tests of a module, which must not change it."""
    return with_models(tmp_path_factory.mktemp("models"))


def with_models(folder: Path) -> Path:
    """Write the models into a folder."""
    for name, net in (("means", NET), ("fixed", FIXED)):
        (folder / name).mkdir()
        (folder / name / "net.prototxt").write_text(net)
        made = Net(folder / name / "net.prototxt", "TEST", device="numpy")
        for params in made.params.values():
            params[0].data[...] = np.eye(3, dtype=np.float32)
        made.save(folder / name / "net.caffemodel")
    (folder / "means" / "model.toml").write_text(CARD)
    return folder


@pytest.fixture(scope="session")
def codecs():
    """Processes for large messages, which all applications share."""
    made = Codecs()
    yield made
    made.close()


@pytest.fixture
def serving(folder, codecs):
    """Make an application of the models; queues are closed when the test ends."""
    with ExitStack() as stack:

        def make(limits=None, max_batch=4, device="numpy", **how):
            queues, metrics = {}, Metrics()
            files = {
                "means": find_model(folder / "means"),
                "fixed": find_model(folder / "fixed" / "net.caffemodel"),
            }
            for name, found in files.items():
                model = Model(name, found, device, max_batch)
                queues[name] = Queue(model, on_batch=partial(metrics.add_batch, name), **how)
                stack.callback(queues[name].close)
            return Client(App(queues, limits or Limits(), metrics, codecs))

        yield make
