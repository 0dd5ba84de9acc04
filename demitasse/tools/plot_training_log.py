"""Caffe's ``plot_training_log``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("plot_training_log")
