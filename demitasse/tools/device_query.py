"""Caffe's ``device_query``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("device_query")
