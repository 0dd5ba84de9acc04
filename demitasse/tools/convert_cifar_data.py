"""Caffe's ``convert_cifar_data``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("convert_cifar_data")
