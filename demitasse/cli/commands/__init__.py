"""Commands by section, and the module of each: ``X`` is ``X_command`` in its module."""

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Train": {"new": "own_images", "train": "train", "report": "training_log", "example": "train"},
    "Run and serve": {
        "deploy": "own_images", "run": "run", "predict": "run", "serve": "run", "card": "run",
    },
    "Compare and benchmark": {
        "test": "benchmark", "time": "benchmark", "bench": "benchmark",
        "largest_batch": "benchmark", "consistency": "compare", "diff": "compare",
    },
    "Inspect": {
        "summary": "inspect", "draw_net": "inspect", "lint": "inspect", "explain": "inspect",
        "doctor": "doctor", "device_query": "doctor", "trust": "doctor", "version": "doctor",
    },
    "Convert": {
        "weights": "weights", "export": "convert", "import": "convert", "upgrade": "convert",
    },
    "Data": {
        "dataset": "own_images", "convert": "databases", "convert_imageset": "databases",
        "compute_image_mean": "databases", "extract_features": "databases",
    },
    "Caffe's tools": {"caffe": "caffe", "caffe_shims": "caffe"},
}  # fmt: skip
"""Sections of ``--help`` -> their commands -> the module of each command."""

CAFFE_TOOLS: Mapping[str, str] = {
    "train": "train", "test": "benchmark", "time": "benchmark", "device_query": "doctor",
    "convert_imageset": "databases", "convert_annoset": "databases",
    "convert_mnist_data": "databases", "convert_mnist_siamese_data": "databases",
    "convert_cifar_data": "databases", "compute_image_mean": "databases",
    "extract_features": "databases", "resize_and_crop_images": "image_files",
    "get_image_size": "image_files", "upgrade_net_proto_text": "convert",
    "upgrade_net_proto_binary": "convert", "upgrade_solver_proto_text": "convert",
    "classify": "classify", "detect": "classify", "draw_net": "inspect",
    "parse_log": "training_log", "extract_seconds": "training_log",
    "plot_training_log": "training_log",
}  # fmt: skip
"""Tools of Caffe and SSD, commands of ``demitasse caffe``, and the module of each."""

MODULES: Mapping[str, str] = {
    **CAFFE_TOOLS,
    **{name: module for commands in SECTIONS.values() for name, module in commands.items()},
}
"""All commands of ``demitasse``: tools of Caffe that no section lists are hidden aliases."""
