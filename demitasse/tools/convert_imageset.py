"""Caffe's ``convert_imageset``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("convert_imageset")
