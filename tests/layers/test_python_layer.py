"""Python layers: users' own code, from a module on sys.path or beside the prototxt."""

import sys
import textwrap
import traceback

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.layers import python as python_layer
from demitasse.layers.user_layer import BlobVec, UserLayer
from demitasse.testing import check_gradients, make_layer

HEAD = "import numpy as np\nfrom demitasse.layers.user_layer import UserLayer as Layer\n"

SQUARED = """
class SquaredDistance(Layer):
    '''Half the squared distance of two bottoms, per item.'''

    def setup(self, bottom, top):
        if len(bottom) != 2:
            raise Exception('two bottoms are needed')

    def reshape(self, bottom, top):
        if bottom[0].count != bottom[1].count:
            raise Exception('both need one size')
        self.diff = np.zeros_like(bottom[0].data)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.diff[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = np.sum(self.diff ** 2) / bottom[0].num / 2.

    def backward(self, top, propagate_down, bottom):
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = sign * self.diff / bottom[i].num
"""


@pytest.fixture(autouse=True)
def _modules_are_forgotten(monkeypatch):

    monkeypatch.setattr(python_layer, "_beside", {})
    yield
    for name in list(sys.modules):
        if name.partition(".")[0] in {"mine", "myloss", "mylayers", "helper"}:
            del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    """Write a module beside the prototxts and return its folder."""

    def write(code, name="mine", folder=tmp_path):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(code))
        return folder

    return write


def python(layer, module="mine", param_str="", more=""):
    return (
        f'type: "Python" {more} python_param {{ module: "{module}" layer: "{layer}" '
        f"param_str: '{param_str}' }}"
    )


def net_file(folder, *layers):
    shape = "input_param { shape { dim: 2 dim: 3 } }"
    inputs = [f'layer {{ name: "{n}" type: "Input" top: "{n}" {shape} }}' for n in ("x", "t")]
    path = folder / "net.prototxt"
    path.write_text("\n".join([*inputs, *layers]))
    return path


def test_a_loss_written_for_caffe_runs_unchanged(write, backend):
    folder = write(SQUARED, "myloss")
    net = Net(
        net_file(
            folder,
            'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param '
            '{ num_output: 3 weight_filler { type: "xavier" } } }',
            'layer { name: "loss" bottom: "y" bottom: "t" top: "loss" loss_weight: 1 '
            + python("SquaredDistance", "myloss")
            + " }",
        ),
        "TRAIN",
        device=backend,
    )
    x, t = np.random.default_rng(0).normal(size=(2, 2, 3)).astype("float32")
    net.blobs["x"].data[...], net.blobs["t"].data[...] = x, t

    loss = net.forward_backward()

    difference = net.blobs["y"].data - t
    np.testing.assert_allclose(loss, (difference**2).sum() / 4, rtol=1e-5)
    np.testing.assert_allclose(net.params["ip"][0].diff, (difference / 2).T @ x, rtol=1e-4)
    assert net.structure.needs.layers == [False, False, True, True]


def test_gradients_of_a_users_layer(write, backend):
    code = """
        class Cube(Layer):
            def reshape(self, bottom, top):
                top[0].reshape(*bottom[0].shape)

            def forward(self, bottom, top):
                top[0].data[...] = bottom[0].data ** 3

            def backward(self, top, propagate_down, bottom):
                bottom[0].diff[...] = 3 * bottom[0].data ** 2 * top[0].diff
        """
    one = make_layer(
        python("Cube", more='top: "y"'), [[[1.0, -2, 3]]], base_dir=write(code), device=backend
    )

    check_gradients(one)


def test_setup_sees_param_str_phase_and_blobs(write):
    code = """
        class Look(Layer):
            def setup(self, bottom, top):
                b = bottom[0]
                self.seen = (self.param_str, self.phase, self.type, b.num, b.channels, b.height,
                             b.width, b.count, tuple(b.shape), len(bottom), len(top))

            def reshape(self, bottom, top):
                pass
        """
    x = np.zeros((2, 3, 4, 5))
    for phase, number in (("TRAIN", 0), ("TEST", 1)):
        one = make_layer(
            python("Look", param_str='{"a": 1}'), [x], base_dir=write(code), phase=phase
        )

        seen = ('{"a": 1}', number, "Python", 2, 3, 4, 5, 120, (2, 3, 4, 5), 1, 0)
        assert one.layer.user.seen == seen


def test_reshape_runs_before_every_forward(write, backend):
    code = """
        class AsManyAsTheFirstSays(Layer):
            def reshape(self, bottom, top):
                top[0].reshape(int(bottom[0].data.flat[0]), 2)

            def forward(self, bottom, top):
                top[0].data[...] = 1
        """
    folder = write(code)
    net = Net(
        net_file(
            folder,
            'layer { name: "p" bottom: "x" top: "y" ' + python("AsManyAsTheFirstSays") + " }",
            'layer { name: "r" type: "Reduction" bottom: "y" top: "n" }',
        ),
        "TEST",
        device=backend,
    )
    for wanted in (3, 1, 5):
        net.blobs["x"].data = wanted

        net.forward()

        assert net.blobs["y"].shape == (wanted, 2)
        assert net.blobs["n"].data == 2 * wanted


def test_parameters_are_made_with_add_blob(write, backend):
    code = """
        class Slope(Layer):
            def setup(self, bottom, top):
                self.blobs.add_blob(1)
                self.blobs[0].data[0] = 2
                self.blobs.add_blob(2, 3)

            def reshape(self, bottom, top):
                top[0].reshape(*bottom[0].shape)

            def forward(self, bottom, top):
                top[0].data[...] = bottom[0].data * self.blobs[0].data[0]

            def backward(self, top, propagate_down, bottom):
                self.blobs[0].diff[0] += (top[0].diff * bottom[0].data).sum()
        """
    folder = write(code)
    layer = 'layer { name: "p" bottom: "x" top: "y" ' + python("Slope") + " }"
    path = net_file(folder, "force_backward: true", layer)
    net = Net(path, "TRAIN", device=backend)
    net.blobs["x"].data = 3
    net.forward()
    net.blobs["y"].diff = 1
    net.backward()

    assert [blob.shape for blob in net.params["p"]] == [(1,), (2, 3)]
    assert [record.lr_mult for record in net.structure.param_records] == [1, 1]
    np.testing.assert_array_equal(net.blobs["y"].data, 6)
    np.testing.assert_array_equal(net.params["p"][0].diff, 18)

    net.params["p"][0].data = 7
    net.save(folder / "net.caffemodel")
    again = Net(path, "TRAIN", device=backend, weights=folder / "net.caffemodel")
    assert again.params["p"][0].data == 7


def test_a_layer_of_the_engine_can_be_named_too(write, backend):
    code = """
        from demitasse.layers.activations import NeuronLayer

        class Twice(NeuronLayer):
            def forward(self, bottom, top):
                top[0].write(bottom[0].read() * 2)
        """
    one = make_layer(python("Twice"), [[1.0, 2.0]], base_dir=write(code), device=backend)

    np.testing.assert_array_equal(one.forward()[0], [2, 4])


def test_old_layers_find_param_str_under_its_old_name():
    class Old(UserLayer):
        param_str = "text"

    assert Old().param_str_ == "text"


NAMED = """
    class Named(Layer):
        name = "{}"

        def reshape(self, bottom, top):
            pass
    """


def test_a_module_on_the_path_wins_over_one_beside_the_prototxt(write, tmp_path, monkeypatch):
    write(NAMED.format("path"), folder=tmp_path / "path")
    write(NAMED.format("beside"), folder=tmp_path / "net")
    monkeypatch.syspath_prepend(tmp_path / "path")

    one = make_layer(python("Named"), base_dir=tmp_path / "net")

    assert one.layer.user.name == "path"


def test_nets_in_two_folders_each_have_their_own_module(write, tmp_path):
    path = list(sys.path)
    for _ in range(2):
        for folder in ("a", "b"):
            write(NAMED.format(folder), folder=tmp_path / folder)

            one = make_layer(python("Named"), base_dir=tmp_path / folder)

            assert one.layer.user.name == folder
    assert sys.path == path


def test_a_module_in_a_package_that_imports_its_neighbour(write, tmp_path):
    write("", "__init__", tmp_path / "mylayers")
    write("NAME = 'neighbour'", "names", tmp_path / "mylayers")
    write("WHERE = 'beside'", "helper")
    write(
        """
        from .names import NAME
        from helper import WHERE

        class Named(Layer):
            def reshape(self, bottom, top):
                self.seen = NAME, WHERE
        """,
        "named",
        tmp_path / "mylayers",
    )

    one = make_layer(python("Named", "mylayers.named"), base_dir=tmp_path)

    assert one.layer.user.seen == ("neighbour", "beside")


# -- what is refused -------------------------------------------------------------------------------


def test_an_error_of_the_user_keeps_its_type_and_traceback_and_names_the_layer(write):
    code = """
        class Breaks(Layer):
            def reshape(self, bottom, top):
                top[0].reshape(2)

            def forward(self, bottom, top):
                top[0].data[...] = self.nothing
        """
    path = net_file(write(code), 'layer { name: "bad" top: "y" ' + python("Breaks") + " }")
    net = Net(path, "TEST")

    with expect_error(AttributeError, mentions="nothing") as caught:
        net.forward()

    [note] = caught.value.__notes__
    assert "'bad'" in note
    assert f"mine.Breaks.forward, {path.parent / 'mine.py'}:9" in note
    assert "top[0].data[...] = self.nothing" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("method", ["__init__", "setup", "reshape"])
def test_an_error_while_the_net_is_built_names_the_method(method, write):
    code = f"""
        class Breaks(Layer):
            def reshape(self, bottom, top):
                pass

            def {method}(self, *args):
                raise ZeroDivisionError('oh')
        """
    with pytest.raises(ZeroDivisionError) as caught:
        make_layer(python("Breaks"), base_dir=write(code))

    [note] = caught.value.__notes__
    assert f"mine.Breaks.{method}, " in note
    assert note.endswith("mine.py:9")


def test_an_error_of_ours_is_placed_by_the_net(write):
    code = """
        class Breaks(Layer):
            def reshape(self, bottom, top):
                top[0].reshape(-1)
        """
    path = net_file(write(code), 'layer { name: "bad" top: "y" ' + python("Breaks") + " }")

    with expect_error(ShapeError, mentions=["bad", "(Python)"]):
        Net(path, "TEST")


@pytest.mark.parametrize("method", ["reshape", "forward", "backward"])
def test_a_method_that_is_missing_is_named(method, write):
    others = "".join(
        f"    def {name}(self, *args): pass\n"
        for name in ("reshape", "forward", "backward")
        if name != method
    )
    folder = write("class Lacking(Layer):\n" + others)

    def run():
        one = make_layer(python("Lacking"), [[1.0]], base_dir=folder)
        one.forward()
        one.backward()

    with expect_error(NotImplementedError, mentions=["Lacking", f"{method}(self"]):
        run()


def test_refuses_a_module_that_is_not_there(tmp_path):
    with expect_error(NetError, ErrorCode.NOT_FOUND, field="python_param.module"):
        make_layer(python("Any", "nowhere"), base_dir=tmp_path)


def test_a_module_that_misses_another_says_which(write):
    folder = write("import quite_missing")

    with expect_error(ModuleNotFoundError, mentions="quite_missing") as caught:
        make_layer(python("Any"), base_dir=folder)

    [note] = caught.value.__notes__
    assert "'layer'" in note
    assert "mine" in note


@pytest.mark.parametrize("name", ["Absent", "number", "function", "Plain"])
def test_refuses_what_is_not_a_layer(name, write):
    code = """
        number = 3

        def function(param):
            raise AssertionError('called')

        class Plain:
            def __init__(self, param):
                raise AssertionError('called')

        class Real(Layer):
            pass
        """
    with expect_error(NetError, ErrorCode.UNKNOWN, field="python_param.layer", got=name):
        make_layer(python(name), base_dir=write(code))


def test_refuses_to_call_anything_in_the_standard_library():
    with expect_error(NetError, ErrorCode.UNKNOWN, field="python_param.layer"):
        make_layer(python("system", "os"))


@pytest.mark.parametrize("fields", ['module: "mine"', 'layer: "Any"', ""])
def test_refuses_a_missing_module_or_layer(fields):
    field = "python_param.layer" if "module" in fields else "python_param.module"
    with expect_error(ConfigError, ErrorCode.MISSING, field=field):
        make_layer(f'type: "Python" python_param {{ {fields} }}')


def test_refuses_everything_where_python_layers_are_switched_off(write, monkeypatch):
    monkeypatch.setenv("DEMITASSE_PYTHON_LAYERS", "0")
    path = net_file(
        write("raise AssertionError('imported')"),
        'layer { name: "p" top: "y" ' + python("Any") + " }",
    )

    with expect_error(ConfigError, ErrorCode.UNTRUSTED, field="python_param.module"):
        Net(path, "TEST")


def test_blobs_of_no_layer_are_zeros():
    blobs = BlobVec()

    blobs.add_blob(1, 2)

    assert blobs[0].shape == (1, 2)
    assert not blobs[0].data.any()
