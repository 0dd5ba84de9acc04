"""Caffe's ``convert_mnist_data``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("convert_mnist_data")
