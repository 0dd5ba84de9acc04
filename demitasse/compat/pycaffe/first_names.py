"""Methods that nets had in Caffe's first versions, and what says the same since."""

from __future__ import annotations

__all__ = ["instead_of"]

_INSTEAD = {
    "set_phase_test": "name the phase when the net is made: Net(file, weights, caffe.TEST)",
    "set_phase_train": "name the phase when the net is made: Net(file, weights, caffe.TRAIN)",
    "set_mode_cpu": "call caffe.set_mode_cpu() before the net is made",
    "set_mode_gpu": "call caffe.set_mode_gpu() before the net is made",
    "set_device": "call caffe.set_device(number) before the net is made",
    **dict.fromkeys(
        ("set_mean", "set_input_scale", "set_raw_scale", "set_channel_swap"),
        "give it to caffe.Classifier when that is made, or to a caffe.io.Transformer",
    ),
    **dict.fromkeys(("preprocess", "deprocess"), "a caffe.io.Transformer has it"),
}


def instead_of(name: str) -> str:
    """Return what to do in place of a method of the first versions, or an empty string."""
    return _INSTEAD.get(name, "")
