"""Caffe's ``extract_features``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("extract_features")
