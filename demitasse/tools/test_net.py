"""Caffe's ``test_net``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("test_net")
