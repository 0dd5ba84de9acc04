"""Caffe's ``finetune_net``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("finetune_net")
