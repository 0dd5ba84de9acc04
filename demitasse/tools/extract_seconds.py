"""Caffe's ``extract_seconds``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("extract_seconds")
