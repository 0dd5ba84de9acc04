"""Old names of layers' hooks and metadata, which work and warn once."""

import re
import subprocess
import sys

import pytest

CASES = {
    "register": """
import demitasse as dm
@dm.register("Old", facts=None)
class Old(dm.Layer):
    pass
""",
    "facts": """
from demitasse.layers.facts import LayerFacts, When, facts_of
from demitasse.layers.metadata import LayerMetadata, layer_metadata
assert LayerFacts is LayerMetadata and facts_of is layer_metadata
assert LayerFacts(judge="Caffe", per_value=None).reference == "Caffe"
""",
    "hooks": """
import demitasse as dm
class Old(dm.Layer):
    repeats = only_shares = draws = True
    refuses_gradients = False
    def carried(self):
        return ["state"]
from demitasse.io.proto import LayerParameter
layer = Old(LayerParameter())
assert layer.graph_capturable and layer.is_alias and layer.random_in_test
assert not layer.strict_propagate_down
assert layer.has_state and layer.state_blobs() == ["state"] == layer.carried()
assert vars(Old)["graph_capturable"]
""",
    "read": """
import demitasse as dm
from demitasse.io.proto import LayerParameter
layer = dm.Layer(LayerParameter())
assert not layer.carries and not layer.remembers and not layer.draws
layer.draws = True
assert layer.random_in_test
""",
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_old_names_work_and_warn(name):
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", CASES[name]]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert re.search(r"<string>:\d+: DeprecationWarning", done.stderr)  # at the user's line
