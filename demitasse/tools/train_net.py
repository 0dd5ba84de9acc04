"""Caffe's ``train_net``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("train_net")
