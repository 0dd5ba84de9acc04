"""Reduction of nets before export."""

from expect_error import expect_error
from exporting import message

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop.export.reduction import reduce_net
from demitasse.interop.onnx_export.converters import unsupported_reason

TRAINED = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
DATA = """
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "not_there" backend: LMDB batch_size: 4 }
  transform_param { crop_size: 6 } }
"""
PYTHON = """
layer { name: "mine" type: "Python" bottom: "ip" top: "mine"
  python_param { module: "nowhere" layer: "Mine" } }
layer { name: "yours" type: "Python" bottom: "mine" top: "yours"
  python_param { module: "nowhere" layer: "Yours" } }
"""
INPUTS = {"data": (2, 5), "label": (2,)}


def reduced(source, **options):
    return reduce_net(source, unsupported_reason, **options)


def layers(found):
    return [(layer.name, layer.type) for layer in found.message.layer]


def test_losses_and_metrics_are_left_out_with_a_word():
    found = reduced(message(TRAINED, INPUTS))

    assert layers(found)[-1] == ("ip", "InnerProduct")
    first, second = found.notes
    assert all(name in first for name in ("'accuracy' (Accuracy)", "'ip'", "'label'"))
    assert all(name in second for name in ("'loss' (SoftmaxWithLoss)", "'ip'", "'label'"))


def test_a_loss_that_is_asked_for_is_refused():
    with expect_error(NetError, ErrorCode.UNSUPPORTED, layers=["loss"]):
        reduced(message(TRAINED, INPUTS), outputs=["loss"])


def test_data_that_is_not_there_becomes_an_input_of_the_size_of_its_crop():
    found = reduced(message(DATA + TRAINED, {}))

    assert layers(found) == [("data", "Input"), ("ip", "InnerProduct")]
    assert list(found.message.layer[0].input_param.shape[0].dim) == [4, 3, 6, 6]


def test_data_of_unknown_size_is_refused_with_what_to_give():
    text = DATA.replace("crop_size: 6", "") + TRAINED

    with expect_error(ConfigError, ErrorCode.MISSING, blob="data", mentions="--shape data="):
        reduced(message(text, {}))

    found = reduced(message(text, {}), shapes={"data": (1, 3, 7, 7)})
    assert list(found.message.layer[0].input_param.shape[0].dim) == [1, 3, 7, 7]


def test_a_shape_for_no_input_is_refused():
    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="shapes", got=["dat"]):
        reduced(message(TRAINED, INPUTS), shapes={"dat": (1, 5)})


def test_everything_that_cannot_be_exported_is_named_at_once():
    with expect_error(NetError, ErrorCode.UNSUPPORTED, layers=["mine", "yours"]):
        reduced(message(TRAINED + PYTHON, INPUTS))


def test_what_comes_before_it_can_be_asked_for_alone():
    found = reduced(message(TRAINED + PYTHON, INPUTS), outputs=["ip"], only=True)

    assert layers(found) == [("data", "Input"), ("ip", "InnerProduct")]


def test_only_without_outputs_is_refused():
    with expect_error(ConfigError, ErrorCode.MISSING, field="outputs"):
        reduced(message(TRAINED, INPUTS), only=True)


def test_a_blob_that_is_not_there_is_refused():
    with expect_error(NetError, ErrorCode.UNKNOWN, field="outputs", got=["fc9"]):
        reduced(message(TRAINED, INPUTS), outputs=["fc9"])


def test_a_net_is_taken_with_the_shapes_it_has_and_without_its_splits():
    text = 'layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "data" top: "sum" }'
    net = Net(message(text, {"data": (2, 5)}), "TEST", device="numpy")
    net.blobs["data"].reshape((7, 5))

    found = reduced(net)

    assert layers(found) == [("data", "Input"), ("sum", "Eltwise")]
    assert list(found.message.layer[0].input_param.shape[0].dim) == [7, 5]
    assert list(found.message.layer[1].bottom) == ["data", "data"]


def test_a_net_in_training_is_taken_as_it_is_used_afterwards():
    text = """
    layer { name: "data" type: "DummyData" top: "data" include { phase: TRAIN }
      dummy_data_param { shape { dim: 4 dim: 5 } } }
    layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" include { phase: TRAIN } }
    """
    net = Net(message(text, {}), "TRAIN", device="numpy")

    found = reduced(net)

    assert layers(found) == [("data", "Input"), ("drop", "Dropout")]
    assert Net(found.message, device="numpy").phase == "TEST"


def test_layers_of_other_phases_and_stages_are_gone():
    text = """
    layer { name: "train" type: "ReLU" bottom: "data" top: "a" include { phase: TRAIN } }
    layer { name: "test" type: "ReLU" bottom: "data" top: "b" include { phase: TEST } }
    layer { name: "staged" type: "ReLU" bottom: "b" top: "c" include { stage: "deploy" } }
    """

    assert [name for name, _ in layers(reduced(message(text, INPUTS)))][2:] == ["test"]
    with_stage = reduced(message(text, INPUTS), stages=["deploy"])
    assert [name for name, _ in layers(with_stage)][2:] == ["test", "staged"]


def test_a_python_layer_without_bottoms_is_data():
    text = DATA.replace('type: "Data"', 'type: "Python"').replace("crop_size: 6", "") + TRAINED

    with expect_error(ConfigError, ErrorCode.MISSING, layer="data", blob="data"):
        reduced(message(text, {}))

    found = reduced(message(text, {}), shapes={"data": (1, 3, 7, 7)})
    assert layers(found) == [("data", "Input"), ("ip", "InnerProduct")]


def test_a_blob_with_a_shape_comes_from_outside():
    mine = PYTHON.split('layer { name: "yours"', maxsplit=1)[0]
    behind = 'layer { name: "relu" type: "ReLU" bottom: "mine" top: "out" }'

    found = reduced(message(TRAINED + mine + behind, INPUTS), shapes={"mine": (2, 3)})

    assert layers(found) == [
        ("mine", "Input"), ("data", "Input"), ("label", "Input"), ("ip", "InnerProduct"),
        ("relu", "ReLU"),
    ]  # fmt: skip
    assert any("layer 'mine' (Python)" in note for note in found.notes)


def test_a_shape_for_what_is_not_exported_is_refused():
    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="shapes", got=["label"]):
        reduced(message(DATA + TRAINED, {}), shapes={"label": (2,)})


def test_the_proposals_of_faster_r_cnn_are_known():
    text = """
    layer { name: "proposal" type: "Python" bottom: "s" bottom: "d" bottom: "i" top: "rois"
      python_param { module: "rpn.proposal_layer" layer: "ProposalLayer"
        param_str: "{'feat_stride': 8, 'scales': [4, 8], 'ratios': (0.5, 1)}" } }
    """

    found = reduced(message(text, {"s": (1, 8, 4, 4), "d": (1, 16, 4, 4), "i": (1, 3)}))

    proposal = found.message.layer[-1]
    assert (proposal.type, list(proposal.top)) == ("Proposal", ["rois"])
    assert proposal.proposal_param.feat_stride == 8
    assert list(proposal.proposal_param.scale) == [4, 8]
    assert list(proposal.proposal_param.ratio) == [0.5, 1]
    assert all(name in found.notes[0] for name in ("ProposalLayer", "rpn.proposal_layer"))
