"""Caffe's ``detect.py``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("detect")
