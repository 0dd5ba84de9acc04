"""Names in other libraries with their equivalents here, for messages."""

from collections.abc import Mapping
from types import ModuleType

from demitasse.core.text import suggestion

NET: Mapping[str, str] = {
    "add_module": "write the layer in the prototxt, or with demitasse.NetSpec",
    "compile": "make a demitasse.Solver",
    "copy_from": "net.load(path)",
    "cpu": 'net.to("cpu")',
    "cuda": 'net.to("cuda:0")',
    "double": 'demitasse.Net(..., dtype="float64")',
    "draw": "the command demitasse draw_net NET OUT.svg, or the net in a notebook",
    "eval": 'demitasse.Net(..., phase="TEST")',
    "evaluate": "solver.test()",
    "fit": "demitasse.Solver(...).fit(x, y)",
    "get_layer": "net.layer_by_name(name)",
    "half": 'demitasse.Net(..., storage="half") on a GPU',
    "input_shape": "net.input_shapes",
    "layer": "net.layer_by_name(name)",
    "load_state_dict": "net.load(path), or the command demitasse weights import for a state_dict",
    "load_weights": "net.load(path)",
    "modules": "net.layers",
    "named_parameters": "net.params.items()",
    "output_shape": "net.blobs[net.outputs[0]].shape",
    "parameters": "net.params",
    "register_backward_hook": 'net.add_hook(layer, function, "after_backward")',
    "register_forward_hook": "net.add_hook(layer, function)",
    "register_forward_pre_hook": 'net.add_hook(layer, function, "before_forward")',
    "register_full_backward_hook": 'net.add_hook(layer, function, "after_backward")',
    "save_weights": "net.save(path)",
    "state_dict": "net.params, or net.save(path)",
    "step": "demitasse.Solver(...).step()",
    "train": 'demitasse.Net(..., phase="TRAIN"); demitasse.Solver trains',
    "weights": "net.params",
    "zero_grad": "net.clear_param_diffs()",
}
"""Attributes of models in PyTorch, Keras and pycaffe."""

SOLVER: Mapping[str, str] = {
    "epoch": "solver.iter", "get_lr": "solver.lr", "iteration": "solver.iter",
    "learning_rate": "solver.lr, or solver.next_lr", "loss": "solver.smoothed_loss",
    "model": "solver.net", "optimizer": "solver.param", "save": "solver.snapshot()",
    "train": "solver.solve(), solver.step(n) or solver.fit(x, y)",
    "zero_grad": "solver.net.clear_param_diffs()",
}  # fmt: skip
"""Attributes of trainers and optimizers."""

BLOB: Mapping[str, str] = {
    "cpu": "blob.data", "detach": "blob.data", "grad": "blob.diff", "item": "blob.data.item()",
    "numpy": "blob.data", "requires_grad": "blob.lr_mult", "size": "blob.count",
    "value": "blob.data", "values": "blob.data",
}  # fmt: skip
"""Attributes of tensors."""

MODULE: Mapping[str, str] = {
    "TEST": 'phase="TEST"',
    "TRAIN": 'phase="TRAIN"',
    "Classifier": "demitasse.pycaffe.Classifier, or demitasse.load_model",
    "Detector": "demitasse.pycaffe.Detector, or demitasse.load_model",
    "NesterovSolver": 'demitasse.Solver(path, type="Nesterov")',
    "SGDSolver": 'demitasse.Solver(path, type="SGD")',
    "available_devices": "demitasse.devices()",
    "get_solver": "demitasse.Solver(path)",
    "load": "demitasse.Net(prototxt, weights), or demitasse.load_weights(path)",
    "manual_seed": "demitasse.seed(n)",
    "nn": "demitasse.layers and demitasse.NetSpec",
    "optim": "demitasse.Solver",
    "random_seed": "demitasse.seed(n)",
    "save": "net.save(path)",
    "set_mode_cpu": 'demitasse.set_device("cpu")',
    "set_mode_gpu": 'demitasse.set_device("cuda:0")',
    "set_random_seed": "demitasse.seed(n)",
    "train": "demitasse.Solver(path).solve()",
}
"""Functions of PyTorch and pycaffe."""


def attribute_error(
    owner: type | ModuleType, name: str, guesses: Mapping[str, str]
) -> AttributeError:
    """Return the error for a missing attribute, with an equivalent or a similar name."""
    kind = "object" if isinstance(owner, type) else "module"
    what = f"{owner.__name__} {kind} has no attribute {name!r}"
    if name.startswith("_"):  # asked by protocols of Python and NumPy
        return AttributeError(what)
    if name in guesses:
        return AttributeError(f"{what}; use {guesses[name]}")
    if isinstance(owner, type) and hasattr(owner, name):
        return AttributeError(f"{name!r} of the {owner.__name__} {kind} raised AttributeError")
    public = [one for one in dir(owner) if not one.startswith("_")]
    return AttributeError(f"{what}{suggestion(name, public)}")
